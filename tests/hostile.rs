//! Files that lie, are cut, or are no GGUF at all: each gives one sentence that names what is wrong, fast, without a big
//! allocation, and never a panic or a signal. Numbers like G05 are the names of the faults in the project's list.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use sayfa::gguf::Gguf;
use sayfa::quant::DType;

#[path = "support/gguf_writer.rs"]
mod gguf_writer;
#[path = "support/rewrite.rs"]
mod rewrite;

use gguf_writer::{Val, Writer};
use rewrite::rewrite;

const MODEL: &str = "models/SmolLM2-135M-Instruct.Q4_1.gguf";
const MICRO: &str = "tests/data/micro/Q4_1.gguf";

fn repository(path: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(path);
    assert!(path.exists(), "{} is missing: run scripts/get_model.sh --tests once", path.display());
    path
}

/// `sayfa inspect -m PATH` in 400 MB of address space, so that an allocation by a claimed number would fail loudly.
fn inspect(path: &Path) -> Output {
    let start = Instant::now();
    let output = Command::new("sh")
        .args(["-c", "ulimit -v 400000; exec \"$0\" inspect -m \"$1\""])
        .arg(env!("CARGO_BIN_EXE_sayfa"))
        .arg(path)
        .output()
        .expect("sh runs");
    let took = start.elapsed();
    assert!(took < Duration::from_secs(5), "{} took {took:?}", path.display());
    output
}

/// The one line with which library and binary refuse the file. It must hold all of `needles`.
fn refused_at(path: &Path, needles: &[&str]) -> String {
    let sentence = match Gguf::open(path) {
        Ok(_) => panic!("{} opens, expected a refusal with {needles:?}", path.display()),
        Err(error) => error.to_string(),
    };
    assert!(sentence.starts_with(&path.display().to_string()), "{sentence}");
    assert!(!sentence.contains('\n'), "{sentence:?}");
    for needle in needles {
        assert!(sentence.contains(needle), "no {needle:?} in: {sentence}");
    }
    let output = inspect(path);
    let stderr = String::from_utf8(output.stderr).expect("errors are UTF-8");
    assert_eq!(output.status.code(), Some(1), "exit code; stderr: {stderr}");
    assert_eq!(output.stdout, b"", "stdout holds something");
    assert_eq!(stderr.lines().count(), 1, "{stderr:?}");
    // the library's error ends with the system's number, which the command line leaves out
    let words = sentence.split(" (os error ").next().expect("a split gives a part");
    assert!(stderr.contains(words), "{stderr:?} does not say {words:?}");
    sentence
}

fn refused(bytes: &[u8], needles: &[&str]) -> String {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("bad.gguf");
    fs::write(&path, bytes).unwrap();
    refused_at(&path, needles)
}

/// Opens with the library and with the binary.
fn accepted(bytes: &[u8]) -> (tempfile::TempDir, Gguf) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("good.gguf");
    fs::write(&path, bytes).unwrap();
    let gguf = Gguf::open(&path).unwrap();
    let output = inspect(&path);
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    (dir, gguf)
}

fn micro() -> Writer {
    rewrite(&Gguf::open(&repository(MICRO)).unwrap())
}

/// One F32 tensor "t" of these dims and no data.
fn with_dims(dims: &[u64]) -> Writer {
    Writer::new().tensor("t", dims, DType::F32.id(), &[])
}

#[test]
fn a_rewritten_file_is_the_same_model() {
    let original = Gguf::open(&repository(MICRO)).unwrap();
    let (_dir, copy) = accepted(&rewrite(&original).build());
    let shown = |gguf: &Gguf| gguf.metadata().map(|(key, value)| format!("{key} {value}")).collect::<Vec<_>>();
    assert_eq!(shown(&original), shown(&copy));
    assert_eq!(original.tensors().len(), copy.tensors().len());
    for (a, b) in original.tensors().iter().zip(copy.tensors()) {
        assert_eq!((&a.name, a.dtype, &a.dims, &a.data()[..]), (&b.name, b.dtype, &b.dims, &b.data()[..]));
    }
}

#[test]
fn g01_dims_whose_product_overflows() {
    refused(&with_dims(&[64, (1 << 42) + 1]).build(), &["\"t\"", "bytes"]);
    refused(&with_dims(&[u64::MAX]).build(), &["\"t\"", "more elements than 2^63"]);
    refused(&with_dims(&[(1 << 63) - 1, 2]).build(), &["\"t\"", "more elements than 2^63"]);
    let i8 = 24;
    refused(&Writer::new().tensor("t", &[(1 << 63) - 1, 2], i8, &[]).build(), &["\"t\"", "more elements than 2^63"]);
    refused(&with_dims(&[1 << 16, 1 << 16, 1 << 16, 1 << 16]).build(), &["\"t\"", "more elements than 2^63"]);
    // The element count fits, four bytes each do not.
    refused(&with_dims(&[1 << 62]).build(), &["\"t\"", "more bytes than 2^64"]);
    // The wrapped size of each is small: 2^32 rows of 2^30 elements of 4 bytes are 2^64 bytes.
    refused(&with_dims(&[1 << 30, 1 << 32]).build(), &["\"t\"", "more bytes than 2^64"]);
    // A size that fits u64 and an offset that brings the end past it.
    let mut writer = with_dims(&[8]);
    writer.tensors[0].offset = Some(u64::MAX - 31);
    refused(&writer.build(), &["\"t\"", "cut or still downloading"]);
}

#[test]
fn g03_zero_dims() {
    refused(&with_dims(&[0]).build(), &["\"t\"", "dim of 0"]);
    refused(&with_dims(&[576, 0]).build(), &["\"t\"", "dim of 0"]);
    refused(&with_dims(&[0, u64::MAX]).build(), &["\"t\"", "dim of 0"]);
    refused(&with_dims(&[]).build(), &["\"t\"", "0 dims", "1 to 4"]);
    refused(&with_dims(&[1, 1, 1, 1, 1]).build(), &["\"t\"", "5 dims", "1 to 4"]);
}

#[test]
fn g05_huge_counts() {
    for claim in [1 << 63, 1 << 40, u64::MAX, u64::MAX / 14 + 1] {
        let mut writer = Writer::new().key("general.architecture", Val::str("llama")).key("x", Val::u64(7));
        writer.claimed_keys = Some(claim);
        refused(&writer.build(), &[&format!("claims {claim} metadata keys"), "bytes are left"]);
        writer.claimed_keys = None;
        writer.claimed_tensors = Some(claim);
        refused(&writer.build(), &[&format!("claims {claim} tensors"), "bytes are left"]);
    }
}

#[test]
fn g06_lengths_past_the_end() {
    let mut bytes = Writer::new().key("key", Val::u32(1)).build();
    bytes[24..32].fill(0xff);
    refused(&bytes, &["metadata key 1 of 1", "18446744073709551615 bytes", "11 are left"]);
    let filler = [0; 900];
    let array = |element_type, len| Writer::new().key("a", Val::array(element_type, len, &filler)).build();
    refused(&array(10, 1 << 61), &["\"a\" of 2305843009213693952 elements"]);
    refused(&array(8, 1_000_000_000), &["1000000000 strings in array \"a\""]);
    refused(&array(8, u64::MAX), &["strings in array \"a\""]);
    let mut one = string_array_with_length(u64::MAX);
    refused(&one, &["string 0 of array \"a\"", "18446744073709551615"]);
    one = string_array_with_length(1 << 30);
    refused(&one, &["string 0 of array \"a\"", "1073741824"]);
    let mut value = Val::str("abc");
    value.bytes[..8].copy_from_slice(&(1u64 << 30).to_le_bytes());
    refused(&Writer::new().key("s", value).build(), &["the string of key \"s\"", "1073741824"]);
}

fn string_array_with_length(len: u64) -> Vec<u8> {
    Writer::new().key("a", Val::array(8, 1, &len.to_le_bytes())).build()
}

#[test]
fn g06_the_real_vocabulary_loads_fast() {
    let path = repository(MODEL);
    let took = (0..3).map(|_| {
        let start = Instant::now();
        let gguf = Gguf::open(&path).unwrap();
        let tokens = gguf.array("tokenizer.ggml.tokens").unwrap().unwrap();
        assert_eq!((tokens.len, tokens.strings().unwrap().count()), (49152, 49152));
        start.elapsed()
    });
    let best = took.min().unwrap();
    assert!(best < Duration::from_millis(300), "{best:?} for opening and walking 49152 tokens");
}

#[test]
fn g07_g13_the_real_model_cut_and_with_other_versions() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("copy.gguf");
    fs::copy(repository(MODEL), &path).unwrap();
    let file = fs::OpenOptions::new().write(true).open(&path).unwrap();
    let whole = file.metadata().unwrap().len();
    let version = |bytes: [u8; 4]| {
        use std::os::unix::fs::FileExt;
        file.write_all_at(&bytes, 4).unwrap();
    };

    version([2, 0, 0, 0]);
    let gguf = Gguf::open(&path).unwrap();
    assert_eq!((gguf.version(), gguf.tensors().len()), (2, 272));
    drop(gguf);
    for (number, bytes) in [(1, [1, 0, 0, 0]), (0, [0; 4]), (4, [4, 0, 0, 0]), (99, [0x63, 0, 0, 0])] {
        version(bytes);
        refused_at(&path, &[&format!("GGUF version {number},"), "versions 2 and 3"]);
    }
    // G12: version 3 written by a big-endian machine.
    version([0, 0, 0, 3]);
    refused_at(&path, &["byte order", "big-endian", "version 3"]);
    version([3, 0, 0, 0]);

    let in_the_vocabulary = 1 << 19;
    for len in [whole - 1, whole / 10 * 9, 1_785_664, in_the_vocabulary, 100, 24, 23, 8, 7, 4, 3] {
        file.set_len(len).unwrap();
        let sentence = refused_at(&path, &["cut", "still downloading", &format!("has {len}")]);
        if len >= 1_785_664 {
            assert!(sentence.contains(&format!("needs {whole} bytes")), "{sentence}");
        }
    }
    file.set_len(0).unwrap();
    refused_at(&path, &["empty"]);
}

#[test]
fn g09_order_overlap_and_alignment_of_tensor_data() {
    let mut writer = micro();
    // Any order of data is sound: the same tensors, the last one's data first.
    let mut offset = 0;
    for tensor in writer.tensors.iter_mut().rev() {
        tensor.offset = Some(offset);
        offset = (offset + tensor.data.len() as u64).next_multiple_of(32);
    }
    let (_dir, reversed) = accepted(&writer.build());
    for tensor in &writer.tensors {
        let name = std::str::from_utf8(&tensor.name).unwrap();
        assert_eq!(reversed.tensor(name).unwrap().data()[..], tensor.data, "{name}");
    }

    let two = || Writer::new().f32_tensor("a", &[16], &[1.0; 16]).f32_tensor("b", &[16], &[2.0; 16]);
    let mut shared = two();
    shared.tensors[1].offset = Some(0);
    refused(&shared.build(), &["\"a\" and \"b\" overlap", "0..64"]);
    let mut one_byte = two();
    one_byte.tensors[1].offset = Some(32);
    refused(&one_byte.build(), &["overlap", "32..96"]);
    for odd in [1, 4, 63] {
        let mut unaligned = two();
        unaligned.tensors[1].offset = Some(64 + odd);
        refused(&unaligned.build(), &["\"b\"", &format!("offset {}", 64 + odd), "multiple of the alignment 32"]);
    }
    let mut gap = two();
    gap.tensors[1].offset = Some(4096);
    accepted(&gap.build());
}

#[test]
fn g10_alignment() {
    let with = |value| Writer::new().key("general.alignment", value).f32_tensor("t", &[1], &[1.0]).build();
    for x in [0, 3, 24, 33] {
        refused(&with(Val::u32(x)), &[&format!("general.alignment is {x}, "), "power of two"]);
    }
    refused(&with(Val::u32(1 << 31)), &["general.alignment is 2147483648", "whole file"]);
    refused(&with(Val::i32(32)), &["general.alignment is a i32", "u32"]);
    refused(&with(Val::u64(32)), &["general.alignment is a u64", "u32"]);
    refused(&with(Val::str("32")), &["general.alignment", "u32"]);
    for alignment in [1, 8, 64] {
        let mut writer = Writer::new().key("general.alignment", Val::u32(alignment)).f32_tensor("t", &[1], &[1.5]);
        writer.alignment = alignment as usize;
        let (_dir, gguf) = accepted(&writer.build());
        assert_eq!(gguf.tensors()[0].data()[..], 1.5f32.to_le_bytes());
    }
}

#[test]
fn g16_integers_of_any_width_that_fits() {
    let mut writer = Writer::new();
    let widths = [Val::u8(7), Val::i8(7), Val::u16(7), Val::i16(7), Val::u32(7), Val::i32(7), Val::u64(7), Val::i64(7)];
    for (i, width) in widths.iter().enumerate() {
        writer = writer.key(format!("k{i}"), width.clone());
    }
    writer = writer.key("negative", Val::i64(-1)).key("text", Val::str("7")).key("float", Val::f32(7.0));
    let (_dir, gguf) = accepted(&writer.build());
    for i in 0..widths.len() {
        assert_eq!(gguf.uint(&format!("k{i}")).unwrap(), Some(7), "k{i}");
    }
    for (key, found) in [("negative", "-1 (i64)"), ("text", "\"7\" (string)"), ("float", "7 (f32)")] {
        let error = gguf.uint(key).unwrap_err().to_string();
        assert!(error.contains(&format!("{key}: must be an integer of 0 or more, not {found}")), "{error}");
    }
}

#[test]
fn g25_all_tensors_of_unsupported_types_are_listed_at_once() {
    for (id, name) in [(31, "Q4_0_4_4"), (36, "IQ4_NL_4_4"), (42, "unknown"), (200, "unknown"), (4, "Q4_2"), (24, "I8")]
    {
        let mut writer = micro();
        writer.tensor_mut("blk.0.attn_q.weight").type_id = id;
        refused(&writer.build(), &["blk.0.attn_q.weight", name, &format!("type {id}"), "1 of "]);
    }
    let mut writer = micro();
    writer.tensor_mut("blk.0.attn_q.weight").type_id = 9;
    writer.tensor_mut("blk.0.ffn_up.weight").type_id = u32::MAX;
    writer.tensor_mut("output_norm.weight").type_id = 15;
    refused(
        &writer.build(),
        &["\"blk.0.attn_q.weight\" is Q8_1", "\"blk.0.ffn_up.weight\" is unknown", "\"output_norm.weight\" is Q8_K"],
    );
}

#[test]
fn g25_every_supported_type_in_one_file() {
    let mut writer = Writer::new();
    for dtype in DType::ALL {
        let elements = 2 * dtype.block_elements() as u64;
        let bytes = vec![0; 3 * dtype.row_bytes(elements).unwrap() as usize];
        writer = writer.tensor(dtype.name(), &[elements, 3], dtype.id(), &bytes);
    }
    let (_dir, gguf) = accepted(&writer.build());
    for dtype in DType::ALL {
        let tensor = gguf.tensor(dtype.name()).unwrap();
        assert_eq!((tensor.dtype, tensor.elements()), (dtype, 6 * dtype.block_elements() as u64));
    }
    for dtype in DType::ALL.into_iter().filter(|dtype| dtype.is_quantized()) {
        let row = dtype.block_elements() as u64 + 1;
        let writer = Writer::new().tensor("t", &[row, 1], dtype.id(), &[0; 512]);
        refused(&writer.build(), &["\"t\"", &format!("rows of {row} elements"), dtype.name()]);
    }
}

#[test]
fn g29_names() {
    let twice = Writer::new().key("a.key", Val::u32(1)).key("b", Val::u32(2)).key("a.key", Val::u32(3));
    refused(&twice.build(), &["duplicate metadata key \"a.key\"", "first seen at byte 24"]);
    refused(&Writer::new().key("", Val::u32(1)).build(), &["metadata key 1 of 1", "empty name"]);
    refused(&Writer::new().key(b"\xff", Val::u32(1)).build(), &["metadata key", "UTF-8"]);
    refused(&Writer::new().key("a\x1b[31m\nb", Val::u32(1)).build(), &[r#""a\u{1b}[31m\nb""#, "control characters"]);
    let named = |name: &str| Writer::new().f32_tensor(name, &[1], &[0.0]);
    refused(&named("t").f32_tensor("t", &[1], &[0.0]).build(), &["duplicate tensor \"t\""]);
    refused(&named("").build(), &["tensor 1 of 1", "name of 0 bytes", "1 to 63"]);
    refused(&named(&"x".repeat(64)).build(), &["name of 64 bytes", "1 to 63"]);
    refused(&named(&"x".repeat(100_000)).build(), &["name of 100000 bytes", "1 to 63"]);
    accepted(&named(&"x".repeat(63)).build());
    refused(&Writer::new().tensor(b"\xfe\xff", &[1], 0, &[0; 4]).build(), &["tensor name", "UTF-8"]);
}

#[test]
fn values_of_unknown_kinds() {
    refused(&Writer::new().key("k", Val::raw(13, &[0; 8])).build(), &["\"k\"", "unknown type 13"]);
    refused(&Writer::new().key("k", Val::raw(u32::MAX, &[0; 8])).build(), &["\"k\"", "unknown type 4294967295"]);
    refused(&Writer::new().key("k", Val::array(13, 1, &[0; 8])).build(), &["\"k\"", "unknown type 13"]);
    refused(&Writer::new().key("k", Val::array(9, 1, &[0; 16])).build(), &["\"k\"", "array of arrays"]);
    refused(&Writer::new().key("k", Val::bool(7)).build(), &["\"k\"", "bool 7", "0 or 1"]);
    refused(&Writer::new().key("k", Val::array(7, 3, &[0, 1, 2])).build(), &["\"k\"", "bool 2", "0 or 1"]);
}

/// The tensors of the small fixture in three files, as llama.cpp's splitter lays them out.
fn split_in_three(dir: &Path) -> Vec<PathBuf> {
    let whole = micro();
    let third = whole.tensors.len().div_ceil(3);
    let split_keys = |writer: Writer, no: u16| {
        writer
            .key("split.no", Val::u16(no))
            .key("split.count", Val::u16(3))
            .key("split.tensors.count", Val::i32(whole.tensors.len() as i32))
    };
    let parts = (0..3).map(|no| {
        let keys = if no == 0 { whole.keys.clone() } else { Vec::new() };
        let tensors = whole.tensors[no * third..((no + 1) * third).min(whole.tensors.len())].to_vec();
        let part = split_keys(Writer { keys, tensors, ..Writer::new() }, no as u16);
        let path = dir.join(format!("m-{:05}-of-00003.gguf", no + 1));
        fs::write(&path, part.build()).unwrap();
        path
    });
    parts.collect()
}

#[test]
fn g30_a_split_model_is_the_whole_model() {
    let dir = tempfile::tempdir().unwrap();
    let parts = split_in_three(dir.path());
    let split = Gguf::open(&parts[0]).unwrap();
    assert_eq!(inspect(&parts[0]).status.code(), Some(0));
    let whole = Gguf::open(&repository(MICRO)).unwrap();
    assert_eq!(split.tensors().len(), whole.tensors().len());
    for (a, b) in split.tensors().iter().zip(whole.tensors()) {
        assert_eq!((&a.name, a.dtype, &a.dims, &a.data()[..]), (&b.name, b.dtype, &b.dims, &b.data()[..]));
        assert_eq!(split.tensor(&a.name).unwrap().name, b.name);
    }
    assert_eq!(split.parts(), parts);
    assert_eq!(split.tensors().last().unwrap().part, 2);
    let on_disk: u64 = parts.iter().map(|path| fs::metadata(path).unwrap().len()).sum();
    assert_eq!(split.file_bytes(), on_disk);
    let keys_without_split = split.metadata().filter(|(key, _)| !key.starts_with("split.")).count();
    assert_eq!(keys_without_split, whole.metadata().count());
}

#[test]
fn g30_split_models_that_are_not_whole() {
    let dir = tempfile::tempdir().unwrap();
    let parts = split_in_three(dir.path());
    let first = parts[0].display().to_string();
    refused_at(&parts[1], &["part 2 of 3", "first part", &first]);
    refused_at(&parts[2], &["part 3 of 3", "first part", &first]);

    let renamed = dir.path().join("model.gguf");
    fs::rename(&parts[0], &renamed).unwrap();
    refused_at(&renamed, &["part 1 of 3", "must end in -00001-of-00003.gguf"]);
    fs::rename(&renamed, &parts[0]).unwrap();

    // The second part's bytes under the third's name.
    let third = fs::read(&parts[2]).unwrap();
    fs::copy(&parts[1], &parts[2]).unwrap();
    let error = Gguf::open(&parts[0]).err().unwrap().to_string();
    assert!(error.contains("m-00003-of-00003.gguf: not part 3 of 3"), "{error}");
    assert!(error.contains("split.no is 1, not 2"), "{error}");

    // A part that is cut is named, not the first.
    fs::write(&parts[2], &third[..third.len() / 2]).unwrap();
    let error = Gguf::open(&parts[0]).err().unwrap().to_string();
    assert!(error.contains("m-00003-of-00003.gguf: the file is cut"), "{error}");

    fs::remove_file(&parts[2]).unwrap();
    refused_at(&parts[0], &["part 1 of 3", "part 3 is missing", "m-00003-of-00003.gguf"]);
    fs::write(&parts[2], third).unwrap();
    Gguf::open(&parts[0]).unwrap();
}

#[test]
fn g30_split_keys_that_lie() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("m-00001-of-00002.gguf");
    let part = |no, count, tensors, name| {
        Writer::new()
            .key("split.no", Val::u16(no))
            .key("split.count", Val::u64(count))
            .key("split.tensors.count", Val::i32(tensors))
            .f32_tensor(name, &[1], &[0.0])
    };
    let other_path = dir.path().join("m-00002-of-00002.gguf");
    fs::write(&other_path, part(1, 2, 2, "b").build()).unwrap();

    fs::write(&path, part(0, 2, 2, "a").build()).unwrap();
    Gguf::open(&path).unwrap();
    fs::write(&path, part(0, 2, 5, "a").build()).unwrap();
    refused_at(&path, &["split.tensors.count: 5 tensors", "hold 2"]);
    fs::write(&path, part(0, 1 << 40, 2, "a").build()).unwrap();
    refused_at(&path, &["split.count: 1099511627776 parts", "at most 99999"]);
    fs::write(&path, part(9, 2, 2, "a").build()).unwrap();
    refused_at(&path, &["split.no: 9 is not below split.count (2)"]);
    fs::write(&path, part(0, 2, 2, "a").without("split.no").build()).unwrap();
    refused_at(&path, &["split.no is missing"]);
    fs::write(&path, part(0, 2, 2, "b").build()).unwrap();
    let error = Gguf::open(&path).err().unwrap().to_string();
    assert!(error.contains("m-00002-of-00002.gguf: tensor \"b\" is in more than one part"), "{error}");

    // One of one is a whole file, whatever its name.
    let whole = dir.path().join("w-00001-of-00001.gguf");
    fs::write(&whole, part(0, 1, 1, "a").build()).unwrap();
    assert_eq!(Gguf::open(&whole).unwrap().tensors().len(), 1);
    fs::rename(&whole, dir.path().join("renamed.gguf")).unwrap();
    Gguf::open(&dir.path().join("renamed.gguf")).unwrap();
}

#[test]
fn every_command_refuses_before_it_begins() {
    let dir = tempfile::tempdir().unwrap();
    let text = dir.path().join("text.txt");
    fs::write(&text, "Some text.").unwrap();
    let mut bad_type = micro();
    bad_type.tensor_mut("blk.0.attn_q.weight").type_id = 200;
    let cut = micro().build();
    let no_heads = micro().set("llama.attention.head_count", Val::u32(0)).build();
    let files = [
        ("cut.gguf", &cut[..cut.len() - 1], "cut or still downloading"),
        ("type.gguf", &bad_type.build()[..], "type 200"),
        ("heads.gguf", &no_heads[..], "llama.attention.head_count"),
    ];
    for (name, bytes, needle) in files {
        let path = dir.path().join(name);
        fs::write(&path, bytes).unwrap();
        for command in [&["run", "-p", "hi"][..], &["chat"], &["perplexity", "-f"], &["bench"]] {
            let mut sayfa = Command::new(env!("CARGO_BIN_EXE_sayfa"));
            sayfa.args(command).stdin(std::process::Stdio::null());
            if command[0] == "perplexity" {
                sayfa.arg(&text);
            }
            let output = sayfa.arg("-m").arg(&path).output().unwrap();
            let stderr = String::from_utf8(output.stderr).unwrap();
            assert_eq!(output.status.code(), Some(1), "{command:?} {name}: {stderr}");
            assert_eq!(output.stdout, b"", "{command:?} {name}");
            assert_eq!(stderr.lines().count(), 1, "{command:?}: {stderr:?}");
            assert!(stderr.contains(needle) && stderr.contains(name), "{command:?}: {stderr:?}");
        }
    }
}

#[test]
fn g32_not_a_gguf() {
    refused(
        b"version https://git-lfs.github.com/spec/v1\noid sha256:b179\nsize 98362432\n",
        &["Git LFS", "git lfs pull"],
    );
    refused(b"<!DOCTYPE html>\n<html><body>404</body></html>\n", &["web page"]);
    refused(b"{\"error\": \"Repository not found\"}", &["JSON"]);
    refused(b"\x4a\0\0\0\0\0\0\0{\"__metadata__\":{\"format\":\"pt\"}}", &["safetensors"]);
    refused(b"PK\x03\x04\0\0\x08\x08archive/data.pkl", &["zip", "PyTorch"]);
    refused(b"\x1f\x8b\x08\0\0\0\0\0", &["compressed"]);
    for magic in [b"lmgg", b"fmgg", b"tjgg", b"algg"] {
        refused(magic, &["old GGML"]);
    }
    refused(b"FUGG\0\0\0\x03", &["big-endian"]);
    refused(b"hello world", &["not a GGUF file", "68 65 6c 6c"]);
    refused(b"x", &["not a GGUF file", "78"]);
    refused(b"", &["empty"]);
}

#[test]
fn g32_not_a_file() {
    use std::os::unix::fs::{PermissionsExt, symlink};
    let dir = tempfile::tempdir().unwrap();
    refused_at(dir.path(), &["directory"]);
    refused_at(Path::new("/dev/zero"), &["not a regular file"]);
    refused_at(Path::new("/dev/null"), &["not a regular file"]);
    let fifo = dir.path().join("fifo.gguf");
    assert!(Command::new("mkfifo").arg(&fifo).status().expect("mkfifo runs").success());
    refused_at(&fifo, &["not a regular file"]);
    let dangling = dir.path().join("dangling.gguf");
    symlink("nowhere.gguf", &dangling).unwrap();
    refused_at(&dangling, &["link", "nowhere.gguf"]);
    let looping = dir.path().join("loop.gguf");
    symlink("loop.gguf", &looping).unwrap();
    refused_at(&looping, &["cannot be opened"]);

    let unreadable = dir.path().join("unreadable.gguf");
    fs::write(&unreadable, micro().build()).unwrap();
    fs::set_permissions(&unreadable, fs::Permissions::from_mode(0o000)).unwrap();
    // Root reads it all the same; then it has to open as if nothing were wrong.
    match fs::File::open(&unreadable) {
        Err(_) => drop(refused_at(&unreadable, &["permission denied"])),
        Ok(_) => assert!(!Gguf::open(&unreadable).unwrap().tensors().is_empty()),
    }
    let link = dir.path().join("link.gguf");
    symlink(repository(MICRO), &link).unwrap();
    Gguf::open(&link).unwrap();
}
