//! Token ids against llama.cpp's published vectors, and against the ids of the fixtures.

use std::path::{Path, PathBuf};

use sayfa::gguf::Gguf;
use sayfa::tokenizer::text::TextStream;
use sayfa::tokenizer::{Special, TokenId, Tokenizer};

const SEPARATOR: &str = "\n__ggml_vocab_test__\n";

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

fn load(path: &Path) -> Tokenizer {
    assert!(path.exists(), "{} is missing: run `scripts/get_model.sh --tests` first", path.display());
    Tokenizer::from_gguf(&Gguf::open(path).unwrap()).unwrap()
}

fn vocabulary_path(name: &str) -> PathBuf {
    root().join(format!("models/tests/vocab/ggml-vocab-{name}.gguf"))
}

/// Texts with the ids that llama.cpp gives them, without BOS and without control tokens.
fn vectors(name: &str) -> Vec<(String, Vec<TokenId>)> {
    let read = |extension: &str| {
        let path = format!("{}.{extension}", vocabulary_path(name).display());
        std::fs::read_to_string(&path)
            .unwrap_or_else(|error| panic!("{path}: {error}: run `scripts/get_model.sh --tests` first"))
    };
    let texts = read("inp");
    let texts: Vec<&str> = texts.split(SEPARATOR).collect();
    let ids = read("out");
    let ids: Vec<&str> = ids.lines().collect();
    // The last text is empty: it follows the last separator.
    assert_eq!(texts.len(), ids.len() + 1, "{name}");
    let ids = ids.iter().map(|line| line.split_whitespace().map(|id| id.parse().unwrap()).collect());
    texts.iter().map(|text| text.to_string()).zip(ids).collect()
}

fn streamed(tokenizer: &Tokenizer, ids: &[TokenId]) -> String {
    let mut stream = TextStream::default();
    let mut text: String = ids.iter().map(|&id| stream.push(tokenizer.bytes(id))).collect();
    text.push_str(&stream.finish());
    text
}

fn check(name: &str) {
    let tokenizer = load(&vocabulary_path(name));
    let vectors = vectors(name);
    assert!(vectors.len() >= 46, "{name}: only {} vectors", vectors.len());
    for (text, expected) in vectors {
        let ids = tokenizer.encode(&text, Special::AsText).unwrap();
        assert_eq!(ids, expected, "{name}: {text:?}");
        assert_eq!(tokenizer.decode(&ids), text, "{name}");
        // Only SentencePiece puts a space before a text; a stream, which continues a prompt, keeps it.
        let streamed = streamed(&tokenizer, &ids);
        assert!(streamed == text || streamed == format!(" {text}"), "{name}: {streamed:?} is not {text:?}");
        // Shielded user text takes the way of a template and must come to the same.
        assert_eq!(tokenizer.encode(&tokenizer.shield(&text), Special::Parse).unwrap(), ids, "{name}: {text:?}");
    }
}

macro_rules! vocabularies {
    ($($test:ident: $name:literal,)*) => {
        $(#[test] fn $test() { check($name); })*
    };
}

vocabularies! {
    llama_spm: "llama-spm",
    phi_3: "phi-3",
    llama_bpe: "llama-bpe",
    qwen2: "qwen2",
    qwen35: "qwen35",
    gpt_2: "gpt-2",
    deepseek_llm: "deepseek-llm",
    deepseek_coder: "deepseek-coder",
    starcoder: "starcoder",
    falcon: "falcon",
    command_r: "command-r",
    mpt: "mpt",
    refact: "refact",
}

/// The vectors can tell a wrong rule from the right one.
#[test]
fn a_wrong_pre_tokenizer_is_noticed() {
    let bytes = std::fs::read(vocabulary_path("llama-bpe")).expect("run `scripts/get_model.sh --tests` first");
    let needle = b"llama-bpe";
    let key = b"tokenizer.ggml.pre";
    let from = bytes.windows(key.len()).position(|window| window == key).unwrap();
    let at = from + bytes[from..].windows(needle.len()).position(|window| window == needle).unwrap();
    let mut wrong = bytes;
    // A name of the same length, so that nothing else moves.
    wrong[at..at + needle.len()].copy_from_slice(b"starcoder");
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("wrong.gguf");
    std::fs::write(&path, wrong).unwrap();
    let tokenizer = load(&path);
    let wrong = vectors("llama-bpe")
        .iter()
        .filter(|(text, expected)| tokenizer.encode(text, Special::AsText).unwrap() != *expected)
        .count();
    assert!(wrong >= 5, "only {wrong} vectors noticed");
}

#[test]
fn the_default_model_gives_the_ids_of_the_fixture() {
    let tokenizer = load(&root().join("models/SmolLM2-135M-Instruct.Q4_1.gguf"));
    let fixture = std::fs::read_to_string(root().join("tests/data/smollm2/expected.json")).unwrap();
    let fixture: serde_json::Value = serde_json::from_str(&fixture).unwrap();
    for case in fixture["cases"].as_array().unwrap() {
        let expected: Vec<TokenId> = serde_json::from_value(case["tokens"].clone()).unwrap();
        let text = case["text"].as_str().unwrap();
        assert_eq!(tokenizer.encode_with_bos(text, Special::AsText).unwrap(), expected, "{text:?}");
    }
}

#[test]
fn the_micro_model_gives_the_ids_of_the_fixture() {
    let tokenizer = load(&root().join("tests/data/micro/F32.gguf"));
    let fixture = std::fs::read_to_string(root().join("tests/data/micro/expected.json")).unwrap();
    let fixture: serde_json::Value = serde_json::from_str(&fixture).unwrap();
    let expected: Vec<TokenId> = serde_json::from_value(fixture["tokens"].clone()).unwrap();
    let text = fixture["text"].as_str().unwrap();
    assert_eq!(tokenizer.encode_with_bos(text, Special::AsText).unwrap(), expected);
}
