//! sayfa's GGUF reader against gguf-rs, an independent one: both must see the same keys, values and tensors in every
//! sound file that the tests have.

use std::fs::File;
use std::io::{BufReader, Read};
use std::path::{Path, PathBuf};

use gguf_rs::{ByteOrder, GGUFContainer, GGUFModel};
use sayfa::gguf::{Gguf, Value};
use serde_json::Value as Json;

#[path = "../../support/gguf_writer.rs"]
mod gguf_writer;
use gguf_writer::{Val, Writer};

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn ggufs_under(dir: &Path) -> Vec<PathBuf> {
    let entries = dir.read_dir().unwrap_or_else(|error| {
        panic!("{}: {error}: run scripts/get_model.sh --tests once", dir.display());
    });
    let mut found = Vec::new();
    for entry in entries {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(ggufs_under(&path));
        } else if path.extension().is_some_and(|extension| extension == "gguf") {
            found.push(path);
        }
    }
    found.sort();
    found
}

/// What gguf-rs reads. Its own `get_gguf_container` cuts arrays and reads without a buffer.
fn read_with_gguf_rs(path: &Path) -> GGUFModel {
    let mut file = BufReader::new(File::open(path).unwrap());
    let mut magic = [0; 4];
    file.read_exact(&mut magic).unwrap();
    assert_eq!(&magic, b"GGUF");
    GGUFContainer::new(ByteOrder::LE, Box::new(file), u64::MAX).decode().unwrap()
}

fn same(ours: Value, theirs: &Json) -> bool {
    match (ours, theirs) {
        (Value::Bool(ours), Json::Bool(theirs)) => ours == *theirs,
        // gguf-rs replaces invalid UTF-8, which some vocabularies hold, by U+FFFD.
        (Value::String(ours), Json::String(theirs)) => String::from_utf8_lossy(ours) == *theirs,
        (Value::Array(ours), Json::Array(theirs)) => {
            ours.len == theirs.len()
                && ours.iter().count() == ours.len
                && ours.iter().zip(theirs).all(|(ours, theirs)| same(ours, theirs))
        }
        // gguf-rs turns NaN and the infinities into null.
        (Value::F32(ours), Json::Null) => !ours.is_finite(),
        (Value::F64(ours), Json::Null) => !ours.is_finite(),
        // Its numbers are decimal texts that give the same float back.
        (Value::F32(ours), Json::Number(theirs)) => {
            theirs.to_string().parse().is_ok_and(|theirs: f32| theirs.to_bits() == ours.to_bits())
        }
        (Value::F64(ours), Json::Number(theirs)) => {
            theirs.to_string().parse().is_ok_and(|theirs: f64| theirs.to_bits() == ours.to_bits())
        }
        (ours, Json::Number(theirs)) => ours.as_int().is_some_and(|ours| ours.to_string() == theirs.to_string()),
        _ => false,
    }
}

/// Compares both readers on a file; gives the numbers of keys and tensors.
fn agree(path: &Path) -> (usize, usize) {
    let name = path.display();
    let ours = Gguf::open(path).unwrap();
    let theirs = read_with_gguf_rs(path);
    assert_eq!(format!("v{}", ours.version()), theirs.get_version(), "{name}: version");

    let mut keys: Vec<&str> = ours.metadata().map(|(key, _)| key).collect();
    keys.sort_unstable();
    // gguf-rs keeps keys sorted, not in file order.
    assert_eq!(keys, theirs.metadata().keys().collect::<Vec<_>>(), "{name}: keys");
    for (key, value) in ours.metadata() {
        assert!(same(value, &theirs.metadata()[key]), "{name}: {key}: {value} against {}", theirs.metadata()[key]);
    }

    assert_eq!(ours.tensors().len(), theirs.tensors().len(), "{name}: number of tensors");
    for (ours, theirs) in ours.tensors().iter().zip(theirs_in(&theirs)) {
        let seen = (ours.name.as_str(), ours.dtype.id(), &ours.dims, ours.offset);
        assert_eq!(seen, theirs, "{name}: name, type, dims, offset");
    }
    for (ours, theirs) in ours.tensors().iter().zip(theirs.tensors()) {
        // gguf-rs takes blocks of 256 for all types from 10 on, and so has wrong sizes for these.
        if !["BF16", "IQ4_NL", "MXFP4"].contains(&ours.dtype.name()) {
            assert_eq!(ours.size_bytes(), theirs.size, "{name}: size of {}", ours.name);
        }
    }
    (ours.metadata().count(), ours.tensors().len())
}

/// Tensors as gguf-rs sees them, with offsets from the start of the file as ours are.
fn theirs_in(model: &GGUFModel) -> impl Iterator<Item = (&str, u32, &Vec<u64>, u64)> {
    let start = model.data_offset();
    model.tensors().iter().map(move |t| (t.name.as_str(), t.kind, &t.shape, start + t.offset))
}

#[test]
fn on_the_default_model() {
    let path = repository().join("models/SmolLM2-135M-Instruct.Q4_1.gguf");
    assert!(path.exists(), "{} is missing: run scripts/get_model.sh once", path.display());
    assert_eq!(agree(&path), (33, 272));
}

#[test]
fn on_the_fixtures() {
    let files = ggufs_under(&repository().join("tests/data"));
    assert!(files.len() >= 21, "only {} fixtures", files.len());
    for file in files {
        let (keys, tensors) = agree(&file);
        assert!(keys > 10 && tensors > 5, "{}: {keys} keys, {tensors} tensors", file.display());
    }
}

#[test]
fn on_the_vocabularies() {
    let files = ggufs_under(&repository().join("models/tests/vocab"));
    assert!(files.len() >= 19, "only {} vocabularies: run scripts/get_model.sh --tests", files.len());
    for file in files {
        let (keys, tensors) = agree(&file);
        assert!(keys > 10 && tensors == 0, "{}: {keys} keys, {tensors} tensors", file.display());
    }
}

#[test]
fn on_every_type_of_value_and_a_wider_alignment() {
    let mut writer = Writer::new()
        .key("general.alignment", Val::u32(128))
        .key("u8", Val::u8(255))
        .key("i8", Val::i8(-128))
        .key("u16", Val::u16(65_535))
        .key("i16", Val::i16(-32_768))
        .key("u32", Val::u32(u32::MAX))
        .key("i32", Val::i32(i32::MIN))
        .key("f32", Val::f32(0.1))
        .key("nan", Val::f32(f32::NAN))
        .key("bool", Val::bool(1))
        .key("u64", Val::u64(u64::MAX))
        .key("i64", Val::i64(i64::MIN))
        .key("f64", Val::f64(-0.0))
        .key("strings", Val::strs(&[&b"a"[..], b"", b"\xff"]))
        .key("floats", Val::f32s(&[f32::MIN_POSITIVE, f32::MAX, f32::INFINITY]))
        .key("bools", Val::array(7, 3, &[1, 0, 1]))
        .f32_tensor("a", &[3], &[1.0, 2.0, 3.0])
        .tensor("b", &[32, 1, 2, 3], 2, &[1; 108]);
    writer.alignment = 128;
    for version in [2, 3] {
        writer.version = version;
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("every_type_v{version}.gguf"));
        std::fs::write(&path, writer.build()).unwrap();
        assert_eq!(agree(&path), (16, 2));
    }
}
