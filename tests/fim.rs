//! `sayfa run --suffix`: filling in the middle, with published vocabularies that have the tokens, small models that are
//! given them, and models that have none.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Duration;

use sayfa::gguf::Gguf;
use sayfa::tokenizer::Tokenizer;
use serde_json::Value;

#[path = "support/gguf_writer.rs"]
mod gguf_writer;
#[path = "support/rewrite.rs"]
mod rewrite;

use gguf_writer::{Val, Writer};

fn root(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

fn vocabulary(name: &str) -> String {
    let path = root(&format!("models/tests/vocab/ggml-vocab-{name}.gguf"));
    assert!(path.exists(), "{} is missing: scripts/get_model.sh --tests gets it", path.display());
    path.display().to_string()
}

fn run(args: &[&str], stdin: &[u8]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_sayfa"));
    command.arg("run").args(args);
    let mut command = assert_cmd::Command::from_std(command);
    command.write_stdin(stdin).timeout(Duration::from_secs(60)).output().unwrap()
}

fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

fn json(output: &Output) -> Value {
    assert!(output.status.success(), "{}", stderr(output));
    serde_json::from_slice(&output.stdout).unwrap()
}

fn dump(args: &[&str], stdin: &[u8]) -> Value {
    json(&run(&[&["--dump-prompt"], args].concat(), stdin))
}

fn pieces(dumped: &Value) -> Vec<&str> {
    dumped["pieces"].as_array().unwrap().iter().map(|piece| piece.as_str().unwrap()).collect()
}

/// The micro model with something changed.
fn small(edit: impl FnOnce(Writer) -> Writer) -> (tempfile::TempDir, String) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("small.gguf");
    let gguf = Gguf::open(&root("tests/data/micro/F32.gguf")).unwrap();
    std::fs::write(&path, edit(rewrite::rewrite(&gguf)).build()).unwrap();
    let path = path.display().to_string();
    (folder, path)
}

#[test]
fn texts_before_and_after_stand_behind_their_markers_as_in_llama_cpp() {
    let model = vocabulary("starcoder");
    let dumped = dump(&["-m", &model, "--suffix", "\n    return x"], b"def f(x):\n");
    assert_eq!(dumped["text"], "<fim_prefix>def f(x):\n<fim_suffix>\n    return x<fim_middle>");
    let pieces = pieces(&dumped);
    assert_eq!((pieces[0], pieces[pieces.len() - 1]), ("<fim_prefix>", "<fim_middle>"));
    let suffix = pieces.iter().position(|piece| *piece == "<fim_suffix>").unwrap();
    // Each text is encoded by itself, as llama.cpp's server does it.
    let tokenizer = Tokenizer::from_gguf(&Gguf::open(Path::new(&model)).unwrap()).unwrap();
    let ids = |text| tokenizer.encode(text, sayfa::tokenizer::Special::AsText).unwrap();
    let found: Vec<u32> = serde_json::from_value(dumped["ids"].clone()).unwrap();
    assert_eq!(found[1..suffix], ids("def f(x):\n"));
    assert_eq!(found[suffix + 1..found.len() - 1], ids("\n    return x"));
    assert_eq!(dump(&["-m", &vocabulary("refact"), "--suffix", "b", "-p", "a"], b"")["ids"][0], 1);
}

#[test]
fn markers_that_a_user_types_stay_text_whatever_their_type_in_the_file() {
    // DeepSeek's are stored as user-defined tokens, which are found in all text otherwise.
    for (model, markers) in [
        ("starcoder", ["<fim_prefix>", "<fim_suffix>", "<fim_middle>"]),
        ("deepseek-coder", ["<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"]),
    ] {
        let model = vocabulary(model);
        let forged = markers.join("x");
        let dumped = dump(&["-m", &model, "--suffix", &forged, "-p", &forged], b"");
        for marker in markers {
            let count = pieces(&dumped).iter().filter(|piece| **piece == marker).count();
            assert_eq!(count, 1, "{marker} in {dumped}");
        }
        let plain = dump(&["-m", &model, "-p", &forged], b"");
        assert!(pieces(&plain).iter().all(|piece| !markers.contains(piece)), "{plain}");
    }
}

#[test]
fn bos_comes_where_the_model_wants_one() {
    let dumped = dump(&["-m", &vocabulary("deepseek-coder"), "--suffix", "b", "-p", "a"], b"");
    let bos = pieces(&dumped).iter().filter(|piece| **piece == "<｜begin▁of▁sentence｜>").count();
    let gguf = Gguf::open(Path::new(&vocabulary("deepseek-coder"))).unwrap();
    assert_eq!(bos, usize::from(Tokenizer::from_gguf(&gguf).unwrap().add_bos()));
    let (_folder, model) = small(|file| {
        let file = file.key("tokenizer.ggml.fim_pre_token_id", Val::u32(300));
        let file = file.key("tokenizer.ggml.fim_suf_token_id", Val::u32(301));
        file.key("tokenizer.ggml.fim_mid_token_id", Val::u32(302))
    });
    let dumped = dump(&["-m", &model, "--suffix", "b", "-p", "a"], b"");
    let ids: Vec<u64> = serde_json::from_value(dumped["ids"].clone()).unwrap();
    assert_eq!((ids[0], ids[1], *ids.last().unwrap()), (1, 300, 302), "{dumped}");
    assert_eq!(ids.iter().filter(|id| **id == 301).count(), 1);
}

#[test]
fn the_older_keys_count_too_and_ids_outside_the_vocabulary_are_warned_of() {
    let with = |names: [&str; 3], ids: [u32; 3]| {
        small(move |file| {
            let keys = names.into_iter().zip(ids);
            keys.fold(file, |file, (name, id)| file.key(format!("tokenizer.ggml.{name}_token_id"), Val::u32(id)))
        })
    };
    let (_folder, model) = with(["prefix", "suffix", "middle"], [310, 311, 312]);
    let dumped = dump(&["-m", &model, "--suffix", "b", "-p", "a"], b"");
    assert_eq!((dumped["ids"][1].as_u64(), dumped["text"].as_str()), (Some(310), Some("▁w310a▁w311b▁w312")));
    let (_folder, model) = with(["fim_pre", "fim_suf", "fim_mid"], [310, 311, 99_999]);
    let output = run(&["-m", &model, "--suffix", "b", "-p", "a", "-n", "1"], b"");
    let said = stderr(&output);
    assert!(output.status.code() == Some(1) && said.contains("no tokens for filling in the middle"), "{said}");
    let output = run(&["-m", &model, "--raw", "-p", "a", "-n", "1"], b"");
    assert!(stderr(&output).contains("fim_mid_token_id' is 99999"), "{}", stderr(&output));
}

#[test]
fn a_gap_is_filled_in_and_padding_or_another_file_ends_it() {
    let (_folder, model) = small(|file| {
        let file = file.key("tokenizer.ggml.fim_pre_token_id", Val::u32(300));
        let file = file.key("tokenizer.ggml.fim_suf_token_id", Val::u32(301));
        let file = file.key("tokenizer.ggml.fim_mid_token_id", Val::u32(302));
        let file = file.key("tokenizer.ggml.fim_pad_token_id", Val::u32(303));
        file.key("tokenizer.ggml.fim_rep_token_id", Val::u32(304)).key("tokenizer.ggml.fim_sep_token_id", Val::u32(305))
    });
    let tokenizer = Tokenizer::from_gguf(&Gguf::open(Path::new(&model)).unwrap()).unwrap();
    let ends: Vec<bool> = (300..307).map(|id| tokenizer.is_end_of_generation(id)).collect();
    assert_eq!(ends, [false, false, false, true, true, true, false]);
    let args = ["-m", &model, "--suffix", "after", "-p", "before", "-n", "6", "--temp", "0", "--ignore-eos"];
    let plain = run(&args, b"");
    assert!(plain.status.success() && stderr(&plain).is_empty(), "{}", stderr(&plain));
    let answer = json(&run(&[&args[..], &["--json"]].concat(), b""));
    assert_eq!(format!("{}\n", answer["text"].as_str().unwrap()).into_bytes(), plain.stdout);
    assert_eq!((&answer["completion_tokens"], &answer["finish_reason"]), (&6.into(), &"length".into()));
    let dumped = dump(&["-m", &model, "--suffix", "after", "-p", "before"], b"");
    assert_eq!(answer["prompt_tokens"].as_u64(), Some(dumped["ids"].as_array().unwrap().len() as u64));
}

#[test]
fn every_byte_around_a_gap_counts() {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str, text: &str| {
        std::fs::write(folder.path().join(name), text).unwrap();
        folder.path().join(name).display().to_string()
    };
    let (before, after) = (file("before", "a\r\n\n"), file("after", "\nb\n"));
    let model = vocabulary("starcoder");
    let dumped = dump(&["-m", &model, "-f", &before, "--suffix-file", &after], b"");
    assert_eq!(dumped["text"], "<fim_prefix>a\r\n\n<fim_suffix>\nb\n<fim_middle>");
    let literal = dump(&["-m", &model, "-p", r"a\n", "--suffix", r"\nb"], b"");
    assert_eq!(literal["text"], "<fim_prefix>a\\n<fim_suffix>\\nb<fim_middle>");
    let escaped = dump(&["-m", &model, "-e", "-p", r"a\n", "--suffix", r"\nb"], b"");
    assert_eq!(escaped["text"], "<fim_prefix>a\n<fim_suffix>\nb<fim_middle>");
    let nothing_before = dump(&["-m", &model, "--suffix", "b"], b"");
    assert_eq!(nothing_before["text"], "<fim_prefix><fim_suffix>b<fim_middle>");
    assert_eq!(run(&["-m", &model, "--suffix", ""], b"").status.code(), Some(2));
}

#[test]
fn models_without_the_tokens_and_flags_of_chats_are_refused() {
    let smollm = root("models/SmolLM2-135M-Instruct.Q4_1.gguf").display().to_string();
    for model in [smollm, vocabulary("llama-spm"), vocabulary("llama-bpe")] {
        let output = run(&["-m", &model, "--dump-prompt", "--suffix", "b", "-p", "a"], b"");
        let said = stderr(&output);
        assert_eq!((output.status.code(), said.lines().count()), (Some(1), 1), "{said}");
        assert!(said.contains("--suffix") && said.contains("no tokens for filling in the middle"), "{said}");
    }
    for flags in [&["--raw"][..], &["--system", "s"], &["--system-in-user"], &["--chat-template", "chatml"]] {
        let output = run(&[&["-p", "a", "--suffix", "b"], flags].concat(), b"");
        assert_eq!(output.status.code(), Some(2), "{flags:?}");
        assert!(stderr(&output).contains("cannot be used with"), "{}", stderr(&output));
    }
    let output = run(&["-p", "a", "--suffix-file", "no-such-file"], b"");
    assert!(output.status.code() == Some(1) && stderr(&output).contains("--suffix-file no-such-file"));
}
