//! One bit pattern on every processor: hashes of all logits of the test models, beside those that an x86-64 machine gave
//! (tests/data/logit_hashes.txt). `scripts/test_aarch64.sh` runs this for AArch64.

#[allow(dead_code)] // each test file uses a part of it
#[path = "support/models.rs"]
mod models;

use std::fmt::Write;
use std::path::Path;

use models::{Setting, all_logits, data, engine, load};
use sayfa::backend::cpu::Activations;
use sayfa::kv::layout::KvType;

/// Enough for two full tiles and a part of one; one text is longer than a span of attention.
const TOKENS: usize = 21;
const LONG: usize = 270;

fn settings() -> [(&'static str, Setting, usize); 4] {
    let plain = Setting::default();
    [
        ("F16 KV", plain, TOKENS),
        ("F16 KV, long", plain, LONG),
        ("INT8 KV", Setting { kv_type: KvType::Int8, ..plain }, TOKENS),
        ("16-bit activations", Setting { activations: Activations::Int16, ..plain }, TOKENS),
    ]
}

/// FNV-1a over the bits of every logit.
fn hash(rows: &[Vec<f32>]) -> u64 {
    let bytes = rows.iter().flatten().flat_map(|x| x.to_bits().to_le_bytes());
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

#[test]
fn logits_have_the_bits_of_every_other_processor() {
    let mut found = String::new();
    let mut count = 0;
    for folder in ["micro", "variants"] {
        let mut files: Vec<_> =
            std::fs::read_dir(data(folder)).expect("committed fixtures").map(|entry| entry.unwrap().path()).collect();
        files.retain(|path| path.extension().is_some_and(|end| end == "gguf"));
        files.sort();
        for path in files {
            let model = load(&path);
            let name = path.file_stem().expect("a file").to_string_lossy();
            for (setting, how, n) in settings() {
                let tokens: Vec<u32> =
                    (0..n as u32).map(|i| (i * i * 31 + i * 7 + 3) % model.config.vocab as u32).collect();
                let logits = all_logits(&mut engine(&model, how), &tokens);
                assert!(logits.iter().flatten().all(|x| x.is_finite()), "{name}, {setting}: NaN bits may differ");
                writeln!(found, "{:016x} {folder}/{name}, {setting}", hash(&logits)).expect("memory");
                count += 1;
            }
        }
    }
    assert_eq!(count, 21 * 4, "16 types and 5 variants in 4 settings");

    let committed = std::fs::read_to_string(data("logit_hashes.txt")).unwrap_or_default();
    let differing: Vec<_> = found.lines().filter(|line| !committed.lines().any(|other| other == *line)).collect();
    if !differing.is_empty() || committed.lines().count() != count {
        let fresh = Path::new(env!("CARGO_TARGET_TMPDIR")).join("logit_hashes.txt");
        std::fs::write(&fresh, &found).expect("a folder of the build");
        panic!(
            "other bits than tests/data/logit_hashes.txt has:\n{}\nIf the arithmetic was changed on purpose, and every table \
             of kernels agrees (tests/contract.rs), make these the new ones on x86-64: cp {} tests/data/logit_hashes.txt",
            differing.join("\n"),
            fresh.display()
        );
    }
}
