//! Sound GGUF files whose model is none, or an unusual one: hyper-parameters, special tokens, missing and surplus tensors.
//! What is refused names its key or tensor; what is accepted gives the very same numbers. Numbers like G04 are the names
//! of the faults in the project's list. (G24, the order of rotated pairs, is what the golden numbers prove.)

use std::path::Path;
use std::sync::Arc;

use sayfa::gguf::Gguf;
use sayfa::model::{Model, RopeOverrides};
use sayfa::quant::DType;
use sayfa::tokenizer::Tokenizer;

#[path = "support/gguf_writer.rs"]
mod gguf_writer;
#[allow(dead_code)] // a part of it is for other tests
#[path = "support/models.rs"]
mod models;
#[path = "support/rewrite.rs"]
mod rewrite;

use gguf_writer::{Val, Writer};
use models::Setting;

/// One layer, dim 256, 4 heads, 2 KV heads, head_dim 64, 320 tokens.
fn micro() -> Writer {
    rewrite::rewrite(&Gguf::open(&models::data("micro/F32.gguf")).unwrap())
}

fn opened<T>(writer: &Writer, then: impl FnOnce(&Path) -> T) -> T {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("model.gguf");
    std::fs::write(&path, writer.build()).unwrap();
    then(&path)
}

fn refused(writer: &Writer, needles: &[&str]) {
    let error = opened(writer, |path| {
        let gguf = Gguf::open(path).unwrap();
        Model::from_gguf(&gguf, &RopeOverrides::default()).err()
    });
    let sentence = format!("{:#}", error.unwrap_or_else(|| panic!("the model loads, expected {needles:?}")));
    said(&sentence, needles);
}

fn refused_by_tokenizer(writer: &Writer, needles: &[&str]) {
    let error = opened(writer, |path| Tokenizer::from_gguf(&Gguf::open(path).unwrap()).err());
    let sentence = format!("{:#}", error.unwrap_or_else(|| panic!("the tokenizer loads, expected {needles:?}")));
    said(&sentence, needles);
}

fn said(sentence: &str, needles: &[&str]) {
    assert!(sentence.contains("model.gguf") && !sentence.contains('\n'), "{sentence:?}");
    for needle in needles {
        assert!(sentence.contains(needle), "no {needle:?} in: {sentence}");
    }
}

/// The bits of the logits after each token of a short text.
fn logits(path: &Path) -> Vec<Vec<u32>> {
    let mut engine = models::engine(&models::load(path), Setting::default());
    let logits = models::all_logits(&mut engine, &[1, 260, 300, 17, 280, 260, 259, 319]);
    assert!(logits.iter().flatten().all(|x| x.is_finite()));
    logits.into_iter().map(|row| row.into_iter().map(f32::to_bits).collect()).collect()
}

fn logits_of(writer: &Writer) -> Vec<Vec<u32>> {
    opened(writer, logits)
}

#[test]
fn g04_hyper_parameters_that_make_no_sense() {
    let with = |key: &str, value: Val| micro().set(key, value);
    for (key, bad) in [
        ("llama.attention.head_count", vec![0, 3, 512, u32::MAX]),
        ("llama.attention.head_count_kv", vec![0, 3, 8, u32::MAX]),
        ("llama.block_count", vec![0, u32::MAX]),
        ("llama.embedding_length", vec![0, u32::MAX]),
        ("llama.feed_forward_length", vec![0, u32::MAX]),
        ("llama.context_length", vec![0]),
        ("llama.attention.key_length", vec![0, 63, u32::MAX]),
        ("llama.rope.dimension_count", vec![0, 63, 128]),
    ] {
        for x in bad {
            refused(&with(key, Val::u32(x)), &[key]);
        }
    }
    for eps in [f32::NAN, f32::INFINITY, 0.0, -1e-5] {
        let key = "llama.attention.layer_norm_rms_epsilon";
        refused(&with(key, Val::f32(eps)), &[key]);
    }
    for base in [f32::NAN, 0.0, -1.0] {
        refused(&with("llama.rope.freq_base", Val::f32(base)), &["llama.rope.freq_base"]);
    }
    // One more layer than there are tensors for, and sizes that only the tensors can contradict.
    refused(&with("llama.block_count", Val::u32(2)), &["blk.1.", "missing", "llama.block_count is 2"]);
    let wider = with("llama.embedding_length", Val::u32(512)).without("llama.rope.dimension_count");
    refused(&wider, &["token_embd.weight", "[256, 320]", "[512, 320]"]);
    refused(&with("llama.feed_forward_length", Val::u32(257)), &["blk.0.ffn_", "257"]);
    refused(&with("llama.attention.head_count_kv", Val::u32(4)), &["blk.0.attn_k.weight", "[256, 128]"]);
}

#[test]
fn g04_per_layer_arrays() {
    let key = "llama.attention.head_count_kv";
    let same = micro().set(key, Val::u32s(&[2]));
    assert_eq!(logits_of(&same), logits(&models::data("micro/F32.gguf")));
    refused(&micro().set(key, Val::u32s(&[2, 2])), &[key]);
    refused(&micro().set(key, Val::u32s(&[])), &[key]);
    refused(&micro().set(key, Val::i32s(&[-2])), &[key]);
    refused(&micro().set(key, Val::strs(&["2"])), &[key]);
}

#[test]
fn g09_g13_g30_the_same_numbers_from_another_file() {
    let expected = logits(&models::data("micro/F32.gguf"));
    assert_eq!(logits_of(&micro()), expected, "rewritten");
    assert_eq!(logits_of(&Writer { version: 2, ..micro() }), expected, "version 2");
    let mut reversed = micro();
    let mut offset = 0;
    for tensor in reversed.tensors.iter_mut().rev() {
        tensor.offset = Some(offset);
        offset = (offset + tensor.data.len() as u64).next_multiple_of(32);
    }
    assert_eq!(logits_of(&reversed), expected, "data in reverse order");
    let mut shuffled = micro();
    shuffled.tensors.reverse();
    shuffled.keys.reverse();
    assert_eq!(logits_of(&shuffled), expected, "entries in reverse order");

    let dir = tempfile::tempdir().unwrap();
    let whole = micro();
    let split = |writer: Writer, no: u16| {
        let total = whole.tensors.len() as i32;
        let writer = writer.key("split.no", Val::u16(no)).key("split.count", Val::u16(2));
        let path = dir.path().join(format!("m-{:05}-of-00002.gguf", no + 1));
        std::fs::write(&path, writer.key("split.tensors.count", Val::i32(total)).build()).unwrap();
        path
    };
    let (head, tail) = whole.tensors.split_at(3);
    let first = split(Writer { tensors: head.to_vec(), ..whole.clone() }, 0);
    split(Writer { tensors: tail.to_vec(), ..Writer::new() }, 1);
    assert_eq!(logits(&first), expected, "split in two");
}

#[test]
fn g14_special_ids_outside_the_vocabulary() {
    for name in ["bos_token_id", "eos_token_id", "unknown_token_id", "eot_token_id"] {
        let key = format!("tokenizer.ggml.{name}");
        for id in [320, u32::MAX, 1 << 31] {
            refused_by_tokenizer(&micro().set(&key, Val::u32(id)), &[&key, &id.to_string(), "320"]);
        }
        refused_by_tokenizer(&micro().set(&key, Val::str("1")), &[&key]);
    }
    // Nothing reads the padding token, so it may be anything.
    let padding = micro().set("tokenizer.ggml.padding_token_id", Val::u32(1 << 31));
    let vocab = opened(&padding, |path| Tokenizer::from_gguf(&Gguf::open(path).unwrap()).unwrap().vocab());
    assert_eq!(vocab, 320);
}

#[test]
fn g16_integer_widths_and_missing_keys() {
    let expected = logits(&models::data("micro/F32.gguf"));
    for width in [Val::u64(512), Val::i32(512), Val::u16(512), Val::i64(512)] {
        assert_eq!(logits_of(&micro().set("llama.context_length", width)), expected);
    }
    refused(&micro().set("llama.block_count", Val::str("1")), &["llama.block_count", "string", "integer"]);
    refused(&micro().set("llama.block_count", Val::i32(-1)), &["llama.block_count", "-1"]);
    refused(&micro().set("llama.attention.head_count", Val::f32(4.0)), &["llama.attention.head_count", "4"]);
    for optional in ["llama.rope.dimension_count", "llama.rope.freq_base", "llama.vocab_size"] {
        assert_eq!(logits_of(&micro().without(optional)), expected, "without {optional}");
    }
    // As many KV heads as heads: the tensors of this file contradict the default.
    refused(&micro().without("llama.attention.head_count_kv"), &["blk.0.attn_k.weight", "[256, 256]"]);
    for required in [
        "general.architecture",
        "llama.block_count",
        "llama.context_length",
        "llama.embedding_length",
        "llama.feed_forward_length",
        "llama.attention.head_count",
        "llama.attention.layer_norm_rms_epsilon",
    ] {
        refused(&micro().without(required), &[required, "missing"]);
    }
    for required in ["tokenizer.ggml.model", "tokenizer.ggml.tokens"] {
        refused_by_tokenizer(&micro().without(required), &[required, "missing"]);
    }
    refused(&micro().set("general.architecture", Val::str("mamba")), &["general.architecture", "mamba", "llama"]);
    // Token types may be of either sign, or absent.
    let encode = |writer: &Writer| {
        opened(writer, |path| {
            let tokenizer = Tokenizer::from_gguf(&Gguf::open(path).unwrap()).unwrap();
            tokenizer.encode("the rain", sayfa::tokenizer::Special::AsText).unwrap()
        })
    };
    let types: Vec<u32> =
        (0..320).map(|id| [2, 3, 3].get(id).copied().unwrap_or(if id < 259 { 6 } else { 1 })).collect();
    assert_eq!(encode(&micro().set("tokenizer.ggml.token_type", Val::u32s(&types))), encode(&micro()));
}

#[test]
fn g18_without_an_output_matrix_the_embedding_is_the_head() {
    let mut tied = micro();
    tied.tensors.retain(|tensor| tensor.name != b"output.weight");
    assert!(tied.tensors.len() < micro().tensors.len(), "the fixture has a head of its own");
    let mut copied = micro();
    let embedding = copied.tensor_mut("token_embd.weight").clone();
    copied.tensor_mut("output.weight").data = embedding.data;
    assert_eq!(logits_of(&tied), logits_of(&copied));
    assert_ne!(logits_of(&tied), logits_of(&micro()));
}

#[test]
fn g20_rope_factors() {
    let with = |factors: &[f32]| micro().f32_tensor("rope_freqs.weight", &[factors.len() as u64], factors);
    let plain = logits_of(&micro());
    assert_eq!(logits_of(&with(&[1.0; 32])), plain);
    assert_ne!(logits_of(&with(&[8.0; 32])), plain);
    refused(&with(&[1.0; 31]), &["rope_freqs.weight", "31", "32"]);
    for bad in [0.0, -1.0, f32::NAN, f32::INFINITY] {
        let mut factors = [1.0; 32];
        factors[31] = bad;
        refused(&with(&factors), &["rope_freqs.weight"]);
    }
}

#[test]
fn g22_biases_and_tensors_that_nobody_uses() {
    let plain = logits_of(&micro());
    for (name, len) in [("attn_q", 256), ("attn_k", 128), ("attn_v", 128), ("attn_output", 256), ("ffn_down", 256)] {
        let name = format!("blk.0.{name}.bias");
        let with = |values: &[f32]| micro().f32_tensor(&name, &[values.len() as u64], values);
        assert_eq!(logits_of(&with(&vec![0.0; len])), plain, "{name} of zeros");
        let mut one = vec![0.0; len];
        one[3] = 0.5;
        assert_ne!(logits_of(&with(&one)), plain, "{name} changes nothing");
        refused(&with(&vec![0.0; len + 1]), &[&name]);
    }
    let junk = micro().f32_tensor("foo.weight", &[2], &[1.0, 2.0]).f32_tensor("blk.7.attn_q.weight", &[1], &[0.0]);
    let unused = opened(&junk, |path| models::load(path).unused_tensors.clone());
    assert_eq!(unused, ["foo.weight", "blk.7.attn_q.weight"]);
    assert_eq!(logits_of(&junk), plain);
}

#[test]
fn g25_the_types_of_real_mixes_in_one_model() {
    // Matrices of other types than F32, as bytes of small numbers: only that they run is asked here, the values of each
    // type are the business of the conformance tests.
    let mut mixed = micro();
    let types = [
        ("token_embd.weight", DType::Q8_0),
        ("blk.0.attn_q.weight", DType::Q4_0),
        ("blk.0.attn_k.weight", DType::F16),
        ("blk.0.attn_v.weight", DType::BF16),
        ("blk.0.attn_output.weight", DType::Q4_1),
        ("blk.0.ffn_gate.weight", DType::Q5_0),
        ("blk.0.ffn_up.weight", DType::Q6_K),
        ("blk.0.ffn_down.weight", DType::Q4_K),
        ("output.weight", DType::Q6_K),
    ];
    for (name, dtype) in types {
        let tensor = mixed.tensor_mut(name);
        let (row, rows) = (tensor.dims[0], tensor.dims[1]);
        tensor.type_id = dtype.id();
        tensor.data = vec![0x11; (dtype.row_bytes(row).unwrap() * rows) as usize];
    }
    assert_eq!(logits_of(&mixed).len(), 8);
    mixed.tensor_mut("blk.0.ffn_norm.weight").type_id = DType::Q4_0.id();
    refused(&mixed, &["blk.0.ffn_norm.weight", "Q4_0"]);
}

#[test]
fn g27_vocabulary_and_embedding_disagree() {
    for rows in [318, 384] {
        let mut writer = micro();
        for name in ["token_embd.weight", "output.weight"] {
            let tensor = writer.tensor_mut(name);
            tensor.dims[1] = rows;
            tensor.data.resize(rows as usize * 256 * 4, 0);
        }
        refused(&writer.without("llama.vocab_size"), &["token_embd.weight", &rows.to_string(), "320"]);
    }
    refused(&micro().set("llama.vocab_size", Val::u32(321)), &["llama.vocab_size", "321", "320"]);
}

#[test]
fn a_model_in_an_arc_outlives_its_file_handle() {
    // The weights keep the map alive after the Gguf is gone.
    let model: Arc<Model> = opened(&micro(), models::load);
    let mut row = vec![0.0; 256];
    model.token_embd.dequantize_row(319, &mut row);
    assert!(row.iter().any(|&x| x != 0.0));
}
