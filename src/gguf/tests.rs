//! The reader on tiny files in memory: what is sound is read back exactly, what is cut or damaged is an error. The lies
//! that people met one by one are in tests/hostile.rs.

use super::gguf_writer::{Val, Writer};
use super::*;

/// Parses bytes as a file of that content.
fn parse(bytes: &[u8]) -> Result<Part, Error> {
    let mut map = memmap2::MmapMut::map_anon(bytes.len()).unwrap();
    map.copy_from_slice(bytes);
    header::parse(Path::new("tiny.gguf"), Arc::new(map.make_read_only().unwrap()), 0)
}

/// Keys of every type and tensors of several, ending exactly with the last tensor's last byte.
fn sound() -> Writer {
    Writer::new()
        .key("general.architecture", Val::str("llama"))
        .key("a.u8", Val::u8(200))
        .key("a.i8", Val::i8(-100))
        .key("a.u16", Val::u16(60_000))
        .key("a.i16", Val::i16(-30_000))
        .key("a.u32", Val::u32(4_000_000_000))
        .key("a.i32", Val::i32(-2_000_000_000))
        .key("a.f32", Val::f32(1.5))
        .key("a.bool", Val::bool(1))
        .key("a.u64", Val::u64(u64::MAX))
        .key("a.i64", Val::i64(i64::MIN))
        .key("a.f64", Val::f64(1e-5))
        .key("a.strings", Val::strs(&[&b"one"[..], b"", b"\xff\xfe"]))
        .key("a.floats", Val::f32s(&[0.0, -1.0, f32::NAN]))
        .key("a.ints", Val::i32s(&[1, -2]))
        .key("a.bools", Val::array(7, 2, &[0, 1]))
        .key("a.empty", Val::array(8, 0, &[]))
        .f32_tensor("norm.weight", &[3], &[1.0, 2.0, 3.0])
        .tensor("q.weight", &[32, 2], 2, &[7; 36])
        .tensor("k.weight", &[64, 1, 2, 1], 8, &[9; 136])
}

fn get<'a>(part: &'a Part, key: &str) -> Value<'a> {
    part.entries.iter().find(|entry| entry.key == key).unwrap().value(&part.map)
}

#[test]
fn reads_back_every_value_and_tensor() {
    let part = parse(&sound().build()).unwrap();
    assert_eq!(part.entries.len(), 17);
    assert_eq!(get(&part, "general.architecture").as_str(), Some("llama"));
    let ints: Vec<i128> = ["a.u8", "a.i8", "a.u16", "a.i16", "a.u32", "a.i32", "a.u64", "a.i64"]
        .iter()
        .map(|key| get(&part, key).as_int().unwrap())
        .collect();
    let expected = [200, -100, 60_000, -30_000, 4_000_000_000, -2_000_000_000, u64::MAX.into(), i128::from(i64::MIN)];
    assert_eq!(ints, expected);
    assert_eq!(get(&part, "a.f32").as_f64(), Some(1.5));
    assert_eq!(get(&part, "a.f64").as_f64(), Some(1e-5));
    assert_eq!(get(&part, "a.bool").as_bool(), Some(true));
    let array = |key| get(&part, key).as_array().unwrap();
    assert_eq!(array("a.strings").strings().unwrap().collect::<Vec<_>>(), [&b"one"[..], b"", b"\xff\xfe"]);
    assert_eq!(array("a.strings").iter().filter_map(|x| x.as_bytes()).map(<[u8]>::len).sum::<usize>(), 5);
    let floats: Vec<u32> = array("a.floats").f32s().unwrap().map(f32::to_bits).collect();
    assert_eq!(floats, [0.0f32.to_bits(), (-1.0f32).to_bits(), f32::NAN.to_bits()]);
    assert_eq!(array("a.ints").ints().unwrap().collect::<Vec<_>>(), [1, -2]);
    assert_eq!(array("a.bools").iter().map(|x| x.as_bool().unwrap()).collect::<Vec<_>>(), [false, true]);
    assert_eq!((array("a.empty").len, array("a.empty").iter().count()), (0, 0));
    assert!(array("a.ints").strings().is_none() && array("a.ints").f32s().is_none());
    assert!(array("a.floats").ints().is_none());

    let shapes: Vec<_> = part.tensors.iter().map(|t| (t.name.as_str(), t.dtype, t.dims.as_slice())).collect();
    let expected: [(&str, DType, &[u64]); 3] = [
        ("norm.weight", DType::F32, &[3]),
        ("q.weight", DType::Q4_0, &[32, 2]),
        ("k.weight", DType::Q8_0, &[64, 1, 2, 1]),
    ];
    assert_eq!(shapes, expected);
    assert_eq!(part.tensors[0].data()[..], [0, 0, 128, 63, 0, 0, 0, 64, 0, 0, 64, 64]);
    assert_eq!(part.tensors[1].data()[..], [7; 36]);
    assert_eq!(part.tensors[2].data().slice(1..136)[..], [9; 135]);
    assert!(part.tensors.iter().all(|tensor| tensor.offset % 32 == 0));
}

#[test]
fn shows_values_on_one_short_line() {
    assert_eq!(Value::String(b"a\nb\x1b[31m").to_string(), r#""a\nb\u{1b}[31m""#);
    assert_eq!(Value::String("ç".repeat(100).as_bytes()).to_string(), format!("\"{}...\"", "ç".repeat(60)));
    assert_eq!(Value::String(&[b'x'; 60]).to_string(), format!("\"{}\"", "x".repeat(60)));
    assert_eq!(Value::I64(-3).to_string(), "-3");
    assert_eq!(Value::Array(Array { element_type: 8, len: 4, bytes: &[] }).to_string(), "[4 x string]");
}

#[test]
fn a_cut_at_any_byte_is_an_error() {
    let bytes = sound().build();
    parse(&bytes).unwrap();
    for len in 1..bytes.len() {
        let error = parse(&bytes[..len]).err().unwrap_or_else(|| panic!("{len} of {} bytes pass", bytes.len()));
        let sentence = error.to_string();
        assert!(sentence.starts_with("tiny.gguf: "), "{sentence}");
        assert!(sentence.contains("cut"), "{len} bytes: {sentence}");
        assert!(sentence.contains(&format!("has {len}")), "{len} bytes: {sentence}");
    }
    let error = parse(&bytes[..bytes.len() - 1]).err().unwrap().to_string();
    assert!(error.contains(&format!("needs {} bytes and has {}", bytes.len(), bytes.len() - 1)), "{error}");
}

#[test]
fn padding_after_the_last_tensor_may_be_missing_or_there() {
    let writer = Writer::new().f32_tensor("norm.weight", &[3], &[1.0, 2.0, 3.0]);
    let mut bytes = writer.build();
    parse(&bytes).unwrap();
    bytes.resize(bytes.len() + 20, 0);
    parse(&bytes).unwrap();
}

#[test]
fn a_flipped_bit_is_an_error_or_a_sound_file() {
    let bytes = sound().build();
    let mut state = 0x5eed_u64;
    let mut random = |below: usize| {
        // The multiplier and increment of Knuth's MMIX; the high bits are the good ones.
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (state >> 33) as usize % below
    };
    let (mut sound, mut refused) = (0, 0);
    for _ in 0..20_000 {
        let mut damaged = bytes.clone();
        for _ in 0..1 + random(3) {
            let at = random(damaged.len());
            damaged[at] ^= 1 << random(8);
        }
        match parse(&damaged) {
            Err(_) => refused += 1,
            Ok(part) => {
                sound += 1;
                for entry in &part.entries {
                    let value = entry.value(&part.map);
                    assert!(!value.to_string().is_empty());
                    if let Some(array) = value.as_array() {
                        assert_eq!(array.iter().count(), array.len);
                    }
                }
                for tensor in &part.tensors {
                    let row = tensor.dtype.row_bytes(tensor.dims[0]).unwrap();
                    assert_eq!(tensor.data().len() as u64, row * tensor.dims[1..].iter().product::<u64>());
                }
            }
        }
    }
    assert!(sound > 1000 && refused > 1000, "{sound} sound, {refused} refused");
}

#[test]
fn typed_access_names_key_type_and_value() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("typed.gguf");
    std::fs::write(&path, sound().build()).unwrap();
    let gguf = Gguf::open(&path).unwrap();
    assert_eq!(gguf.uint("a.u8").unwrap(), Some(200));
    assert_eq!(gguf.uint("a.u64").unwrap(), Some(u64::MAX));
    assert_eq!(gguf.uint("absent").unwrap(), None);
    assert_eq!(gguf.float("a.f64").unwrap(), Some(1e-5));
    assert_eq!(gguf.bool("a.bool").unwrap(), Some(true));
    assert_eq!(gguf.str("general.architecture").unwrap(), Some("llama"));
    assert_eq!(gguf.array("a.ints").unwrap().unwrap().len, 2);
    let sentence = |error: Error| {
        assert!(error.offset.is_some());
        error.to_string()
    };
    let error = sentence(gguf.uint("a.i8").unwrap_err());
    assert!(error.contains("typed.gguf: a.i8: must be an integer of 0 or more, not -100 (i8) (at byte"), "{error}");
    let error = sentence(gguf.uint("general.architecture").unwrap_err());
    assert!(error.contains("general.architecture: must be an integer of 0 or more, not \"llama\" (string)"), "{error}");
    let error = sentence(gguf.array("a.f32").unwrap_err());
    assert!(error.contains("a.f32: must be an array, not 1.5 (f32)"), "{error}");
    let error = sentence(gguf.tensor_error(gguf.tensor("q.weight").unwrap(), "has 2 rows, it must have 3"));
    assert!(error.contains("tensor \"q.weight\" has 2 rows, it must have 3"), "{error}");
    assert!(gguf.tensor("absent").is_none());
    assert_eq!(gguf.metadata().map(|(key, _)| key).next(), Some("general.architecture"));
    assert_eq!(gguf.file_bytes(), std::fs::metadata(&path).unwrap().len());
}

#[test]
fn an_infinite_float_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("inf.gguf");
    let writer = Writer::new().key("x", Val::f32(f32::INFINITY)).key("y", Val::f64(1e300)).key("z", Val::f32(f32::NAN));
    std::fs::write(&path, writer.build()).unwrap();
    let gguf = Gguf::open(&path).unwrap();
    for key in ["x", "y", "z"] {
        let error = gguf.float(key).unwrap_err().to_string();
        assert!(error.contains("must be a finite f32 or f64"), "{error}");
    }
}

/// A file of a few pieces, so that the reading has something to tell.
fn large_file(folder: &Path) -> PathBuf {
    let path = folder.join("large.gguf");
    let zeros = vec![0u8; 9 << 20];
    let bytes = Writer::new().key("a.u8", Val::u8(200)).tensor(
        "q.weight",
        &[32, (9 << 20) / 34],
        8,
        &zeros[..(9 << 20) / 34 * 34],
    );
    std::fs::write(&path, bytes.build()).unwrap();
    path
}

#[test]
fn a_file_read_into_memory_is_the_mapped_one_and_outlives_it() {
    let folder = tempfile::tempdir().unwrap();
    let path = large_file(folder.path());
    let mapped = Gguf::open(&path).unwrap();
    let mut heard = Vec::new();
    let read = Gguf::read(&path, &mut |done, total| {
        heard.push((done, total));
        Ok(())
    });
    let read = read.unwrap();
    assert_eq!((heard[0].0, heard.len()), (0, 4), "{heard:?}");
    assert!(heard.iter().all(|(_, total)| *total == read.file_bytes()) && heard[3].0 == read.file_bytes());
    assert!(heard.is_sorted());
    assert_eq!(read.tensors()[0].data()[..], mapped.tensors()[0].data()[..]);
    drop(mapped);
    std::fs::write(&path, b"another file").unwrap();
    assert_eq!(read.get("a.u8").and_then(|value| value.as_u64()), Some(200));
    assert!(read.tensors()[0].data().iter().all(|&byte| byte == 0));
    read.read_ahead(&mut |_| panic!("there is nothing to read ahead")).unwrap();
}

#[test]
fn the_reading_ends_where_it_is_told_to() {
    let folder = tempfile::tempdir().unwrap();
    let mut calls = 0;
    let refused = Gguf::read(&large_file(folder.path()), &mut |_, total| {
        calls += 1;
        Err(format!("no room for {total} bytes"))
    });
    let sentence = refused.err().unwrap().to_string();
    assert!(sentence.contains("large.gguf: no room for 9") && calls == 1, "{sentence}");
}

#[test]
fn reading_ahead_tells_of_every_byte_once() {
    let folder = tempfile::tempdir().unwrap();
    let gguf = Gguf::open(&large_file(folder.path())).unwrap();
    let mut pieces = Vec::new();
    gguf.read_ahead(&mut |piece| pieces.push(piece)).unwrap();
    assert_eq!((pieces.len(), pieces.iter().sum::<u64>()), (3, gguf.file_bytes()));
}

/// Where a fault would be the signal SIGBUS.
#[cfg(target_os = "linux")]
#[test]
fn a_file_that_is_cut_while_it_is_read_ahead_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let path = large_file(folder.path());
    let gguf = Gguf::open(&path).unwrap();
    std::fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(1 << 20).unwrap();
    let sentence = gguf.read_ahead(&mut |_| {}).unwrap_err().to_string();
    assert!(sentence.contains("large.gguf: cannot be read to its end"), "{sentence}");
}

#[cfg(target_os = "linux")]
#[test]
fn locked_bytes_are_counted_by_the_system_until_they_are_let_go() {
    let locked_kib = || {
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmLck:")).unwrap();
        line.trim().trim_end_matches(" kB").parse::<u64>().unwrap()
    };
    let folder = tempfile::tempdir().unwrap();
    // Smaller than what any user may lock.
    let path = folder.path().join("tiny.gguf");
    std::fs::write(&path, sound().build()).unwrap();
    let gguf = Gguf::open(&path).unwrap();
    let before = locked_kib();
    gguf.lock().unwrap();
    assert!(locked_kib() > before);
    drop(gguf);
    assert_eq!(locked_kib(), before);
}
