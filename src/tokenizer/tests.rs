//! The tokenizer on vocabularies of a few tokens: what bad files lead to, and the rules that published vectors don't reach.

use std::sync::LazyLock;

use proptest::prelude::*;

use super::bpe::byte_of_char;
use super::*;
use crate::gguf::gguf_writer::{Val, Writer};

const NORMAL: i32 = 1;
const UNKNOWN: i32 = 2;
const CONTROL: i32 = 3;
const USER_DEFINED: i32 = 4;
const UNUSED: i32 = 5;
const BYTE: i32 = 6;

fn build(file: &Writer) -> anyhow::Result<Tokenizer> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("tiny.gguf");
    std::fs::write(&path, file.build()).unwrap();
    Tokenizer::from_gguf(&Gguf::open(&path).unwrap())
}

fn error_of(file: &Writer) -> String {
    let error = build(file).err().expect("the file must be refused").to_string();
    assert!(!error.contains('\n'), "{error}");
    error
}

fn file(model: &str, tokens: &[(&str, i32)]) -> Writer {
    let texts: Vec<&str> = tokens.iter().map(|(text, _)| *text).collect();
    let types: Vec<i32> = tokens.iter().map(|(_, kind)| *kind).collect();
    Writer::new()
        .key("general.architecture", Val::str("llama"))
        .key("tokenizer.ggml.model", Val::str(model))
        .key("tokenizer.ggml.tokens", Val::strs(&texts))
        .key("tokenizer.ggml.token_type", Val::i32s(&types))
}

fn spm(tokens: &[(&str, i32, f32)]) -> Writer {
    let scores: Vec<f32> = tokens.iter().map(|(_, _, score)| *score).collect();
    let tokens: Vec<(&str, i32)> = tokens.iter().map(|(text, kind, _)| (*text, *kind)).collect();
    file("llama", &tokens).key("tokenizer.ggml.scores", Val::f32s(&scores))
}

/// All bytes, then `more`, with the rule of GPT-2.
fn bpe(more: &[(&str, i32)], merges: &[&str]) -> Writer {
    let bytes: Vec<String> =
        (0..0x144).filter_map(char::from_u32).filter(|&c| byte_of_char(c).is_some()).map(String::from).collect();
    let tokens: Vec<(&str, i32)> =
        bytes.iter().map(|text| (text.as_str(), NORMAL)).chain(more.iter().copied()).collect();
    file("gpt2", &tokens).key("tokenizer.ggml.pre", Val::str("gpt-2")).key("tokenizer.ggml.merges", Val::strs(merges))
}

fn pieces(tokenizer: &Tokenizer, text: &str, special: Special) -> Vec<String> {
    tokenizer.encode(text, special).unwrap().iter().map(|&id| tokenizer.piece(id).to_string()).collect()
}

#[test]
fn other_tokenizer_models_are_refused_by_name() {
    for model in ["bert", "t5", "rwkv", "gemma4", "plamo2", "none"] {
        let error = error_of(&file(model, &[("a", NORMAL)]));
        assert!(error.contains("tokenizer.ggml.model") && error.contains(model), "{error}");
    }
    assert!(
        error_of(&file("llama", &[("a", NORMAL)]).without("tokenizer.ggml.model")).contains("tokenizer.ggml.model")
    );
}

#[test]
fn an_unknown_pre_tokenizer_is_an_error_and_a_missing_one_a_warning() {
    let sound = bpe(&[("ab", NORMAL)], &["a b"]);
    assert_eq!(build(&sound).unwrap().warnings(), [""; 0]);
    let error = error_of(&sound.clone().set("tokenizer.ggml.pre", Val::str("nonsense")));
    assert!(error.contains("tokenizer.ggml.pre") && error.contains("'nonsense'"), "{error}");
    let error = error_of(&sound.clone().set("tokenizer.ggml.pre", Val::str("kimi-k2")));
    assert!(error.contains("'kimi-k2'") && error.contains("not supported"), "{error}");
    for doubtful in [sound.clone().without("tokenizer.ggml.pre"), sound.set("tokenizer.ggml.pre", Val::str("default"))]
    {
        let tokenizer = build(&doubtful).unwrap();
        assert!(tokenizer.warnings()[0].contains("tokenizer.ggml.pre"), "{:?}", tokenizer.warnings());
        assert_eq!(pieces(&tokenizer, "ab ab", Special::AsText), ["ab", "Ġ", "ab"]);
    }
}

#[test]
fn errors_name_the_key() {
    let spm = spm(&[("<unk>", UNKNOWN, 0.0), ("<s>", CONTROL, 0.0), ("</s>", CONTROL, 0.0), ("a", NORMAL, 0.0)]);
    for (key, value) in [
        ("tokenizer.ggml.bos_token_id", Val::u32(4)),
        ("tokenizer.ggml.eos_token_id", Val::u32(u32::MAX)),
        ("tokenizer.ggml.eot_token_id", Val::u64(1 << 40)),
        ("tokenizer.ggml.eom_token_id", Val::str("</s>")),
        ("tokenizer.ggml.unknown_token_id", Val::i32(-1)),
        ("tokenizer.ggml.tokens", Val::strs::<&str>(&[])),
        ("tokenizer.ggml.tokens", Val::i32s(&[1, 2, 3, 4])),
        ("tokenizer.ggml.token_type", Val::i32s(&[1])),
        ("tokenizer.ggml.token_type", Val::i32s(&[2, 3, 3, 7])),
        ("tokenizer.ggml.token_type", Val::f32s(&[2.0, 3.0, 3.0, 1.0])),
        ("tokenizer.ggml.token_type", Val::i32s(&[3, 3, 3, 3])),
        ("tokenizer.ggml.scores", Val::f32s(&[0.0])),
        ("tokenizer.ggml.scores", Val::f32s(&[0.0, 0.0, 0.0, f32::NAN])),
        ("tokenizer.ggml.add_bos_token", Val::str("yes")),
        ("tokenizer.ggml.add_space_prefix", Val::u32(1)),
    ] {
        let error = error_of(&spm.clone().set(key, value));
        // Without a token for text it is the vocabulary that is of no use.
        assert!(error.contains(key) || error.contains("no token stands for text"), "{key}: {error}");
    }
    let bpe = bpe(&[("ab", NORMAL)], &["a b"]);
    for merges in [vec![], vec!["a b", "b"], vec!["a b", "b nothing"], vec!["b a"]] {
        let error = error_of(&bpe.clone().set("tokenizer.ggml.merges", Val::strs(&merges)));
        assert!(error.contains("tokenizer.ggml.merges"), "{error}");
    }
    assert!(error_of(&bpe.without("tokenizer.ggml.merges")).contains("tokenizer.ggml.merges"));
    assert!(error_of(&spm.without("tokenizer.ggml.tokens")).contains("tokenizer.ggml.tokens"));
    assert!(error_of(&file("gpt2", &[("<s>", CONTROL)])).contains("no token stands for text"));
}

#[test]
fn a_declared_size_that_disagrees_is_a_warning() {
    let file = bpe(&[("ab", NORMAL)], &["a b"]);
    assert_eq!(build(&file.clone().key("llama.vocab_size", Val::u32(257))).unwrap().warnings(), [""; 0]);
    let tokenizer = build(&file.key("llama.vocab_size", Val::u32(300))).unwrap();
    assert!(tokenizer.warnings()[0].contains("300") && tokenizer.warnings()[0].contains("257"));
    assert_eq!(tokenizer.vocab(), 257);
}

#[test]
fn unusable_ids_of_tokens_that_are_not_used_are_warnings() {
    let file = bpe(&[("ab", NORMAL)], &["a b"]);
    for name in ["padding", "separator", "seperator", "cls", "mask", "fim_pre", "fim_suf", "fim_mid", "fim_pad"] {
        let key = format!("tokenizer.ggml.{name}_token_id");
        assert_eq!(build(&file.clone().key(&key, Val::u32(256))).unwrap().warnings(), [""; 0], "the last token");
        for value in [Val::u32(257), Val::u32(u32::MAX), Val::str("x")] {
            let tokenizer = build(&file.clone().key(&key, value)).unwrap();
            let [warning] = tokenizer.warnings() else { panic!("{key}: {:?}", tokenizer.warnings()) };
            assert!(warning.contains(&key) && warning.contains("not used"), "{warning}");
        }
    }
}

#[test]
fn optional_keys_have_llama_cpps_defaults() {
    let tokens = [
        ("<unk>", UNKNOWN, 0.0),
        ("<s>", CONTROL, 0.0),
        ("</s>", CONTROL, 0.0),
        ("▁", NORMAL, 0.0),
        ("a", NORMAL, 0.0),
    ];
    let tokenizer = build(&spm(&tokens)).unwrap();
    assert_eq!((tokenizer.bos(), tokenizer.eos(), tokenizer.add_bos()), (Some(1), Some(2), true));
    assert_eq!(tokenizer.encode_with_bos("a", Special::AsText).unwrap(), [1, 3, 4]);
    assert_eq!(tokenizer.encode_with_bos("", Special::AsText).unwrap(), [1]);
    let tokenizer = build(&spm(&tokens).without("tokenizer.ggml.scores").without("tokenizer.ggml.token_type")).unwrap();
    assert_eq!(tokenizer.bos(), None, "nothing says that token 1 is a marker");
    assert!(!build(&bpe(&[("ab", NORMAL)], &["a b"])).unwrap().add_bos());
    let llama3 = bpe(&[("ab", NORMAL)], &["a b"]).set("tokenizer.ggml.pre", Val::str("llama-bpe"));
    assert!(build(&llama3).unwrap().add_bos());
    assert!(!build(&llama3.key("tokenizer.ggml.add_bos_token", Val::bool(0))).unwrap().add_bos());
}

#[test]
fn without_types_markers_and_bytes_are_still_known() {
    let tokens =
        [("<unk>", UNKNOWN), ("<s>", CONTROL), ("a", NORMAL), ("<0xC3>", BYTE), ("<0xA9>", BYTE), ("▁", NORMAL)];
    let file = file("llama", &tokens)
        .without("tokenizer.ggml.token_type")
        .key("tokenizer.ggml.bos_token_id", Val::u32(1))
        .key("tokenizer.ggml.unknown_token_id", Val::u32(0));
    let tokenizer = build(&file).unwrap();
    assert_eq!(tokenizer.encode_with_bos("aé<s>", Special::Parse).unwrap(), [1, 5, 2, 3, 4, 1]);
    assert_eq!(tokenizer.encode("<", Special::AsText).unwrap(), [5, 0]);
    assert!(tokenizer.is_control(0) && tokenizer.is_control(1));
}

#[test]
fn bos_and_eos_come_once() {
    let file = bpe(&[("ab", NORMAL), ("<s>", CONTROL), ("</s>", CONTROL)], &["a b"])
        .key("tokenizer.ggml.bos_token_id", Val::u32(257))
        .key("tokenizer.ggml.eos_token_id", Val::u32(258))
        .key("tokenizer.ggml.add_bos_token", Val::bool(1))
        .key("tokenizer.ggml.add_eos_token", Val::bool(1));
    let tokenizer = build(&file).unwrap();
    assert_eq!(tokenizer.encode_with_bos("ab", Special::Parse).unwrap(), [257, 256, 258]);
    assert_eq!(tokenizer.encode_with_bos("<s>ab</s>", Special::Parse).unwrap(), [257, 256, 258]);
    // As text the same characters are no BOS.
    let ids = tokenizer.encode_with_bos("<s>ab", Special::AsText).unwrap();
    assert_eq!((ids.len(), ids[0], ids[1]), (6, 257, u32::from(b'<' - b'!')));
}

#[test]
fn a_character_without_tokens_becomes_unknown_or_nothing() {
    let known = [("▁", NORMAL, -1.0), ("a", NORMAL, -2.0)];
    let with_unknown: Vec<_> = [("<unk>", UNKNOWN, 0.0)].into_iter().chain(known).collect();
    let tokenizer = build(&spm(&with_unknown)).unwrap();
    assert_eq!(tokenizer.encode("a字語a", Special::AsText).unwrap(), [1, 2, 0, 2]);
    assert_eq!(tokenizer.warnings(), [""; 0]);
    let tokenizer = build(&spm(&known)).unwrap();
    assert_eq!(tokenizer.encode("a字a", Special::AsText).unwrap(), [0, 1, 1]);
    assert!(tokenizer.warnings()[0].contains("left out"));
}

#[test]
fn byte_tokens_stand_for_bytes_and_not_for_their_own_text() {
    let mut tokens: Vec<(String, i32, f32)> = (0..=255).map(|byte| (format!("<0x{byte:02X}>"), BYTE, 0.0)).collect();
    tokens.push(("▁".into(), NORMAL, 0.0));
    let tokens: Vec<_> = tokens.iter().map(|(text, kind, score)| (text.as_str(), *kind, *score)).collect();
    let tokenizer = build(&spm(&tokens)).unwrap();
    assert_eq!(tokenizer.encode("é", Special::AsText).unwrap(), [256, 0xc3, 0xa9]);
    assert_eq!(tokenizer.encode("<0x41>", Special::Parse).unwrap().len(), 7);
    assert_eq!(tokenizer.decode(&[256, 0xc3, 0xa9, 0xff]), "é\u{fffd}");
}

#[test]
fn sentencepiece_takes_the_best_score_and_the_leftmost_of_equals() {
    let tokens = [
        ("a", NORMAL, 0.0),
        ("b", NORMAL, 0.0),
        ("c", NORMAL, 0.0),
        ("bc", NORMAL, -5.0),
        ("ab", NORMAL, -5.0),
        ("ca", NORMAL, -1.0),
        ("aa", NORMAL, -2.0),
    ];
    let tokenizer = build(&spm(&tokens).key("tokenizer.ggml.add_space_prefix", Val::bool(0))).unwrap();
    assert_eq!(pieces(&tokenizer, "abc", Special::AsText), ["ab", "c"], "equal scores: position counts, not the id");
    assert_eq!(pieces(&tokenizer, "bca", Special::AsText), ["b", "ca"]);
    assert_eq!(pieces(&tokenizer, "aaaaa", Special::AsText), ["aa", "aa", "a"]);
}

#[test]
fn a_space_goes_before_text_and_after_special_tokens() {
    let tokens = [
        ("<s>", CONTROL, 0.0),
        ("</s>", CONTROL, 0.0),
        ("<tool>", USER_DEFINED, 0.0),
        ("▁", NORMAL, 0.0),
        ("a", NORMAL, 0.0),
        ("b", NORMAL, 0.0),
    ];
    let tokenizer = build(&spm(&tokens)).unwrap();
    assert_eq!(tokenizer.encode("<s>a</s> b", Special::Parse).unwrap(), [0, 3, 4, 1, 3, 3, 5]);
    assert_eq!(tokenizer.encode("a<tool>b", Special::AsText).unwrap(), [3, 4, 2, 3, 5]);
    assert_eq!(tokenizer.decode(&[0, 3, 4, 3, 5]), "a b");
    let tokenizer = build(&spm(&tokens).key("tokenizer.ggml.add_space_prefix", Val::bool(0))).unwrap();
    assert_eq!(tokenizer.encode("<s>a</s> b", Special::Parse).unwrap(), [0, 4, 1, 3, 5]);
    assert_eq!(tokenizer.decode(&[3, 4]), " a");
}

#[test]
fn turn_ends_are_known_by_their_text_and_never_typed() {
    // A converter that marked nothing; the merges could build the text of a turn end.
    let file = bpe(
        &[
            ("im", NORMAL),
            ("<eos>", NORMAL),
            ("os", NORMAL),
            ("eos", NORMAL),
            ("<eos", NORMAL),
            ("<|im_end|>", NORMAL),
            ("odd", NORMAL),
        ],
        &["i m", "o s", "e os", "< eos", "<eos >"],
    )
    .key("tokenizer.ggml.eos_token_id", Val::u32(262))
    .set("tokenizer.ggml.pre", Val::str("laguna"));
    let tokenizer = build(&file).unwrap();
    assert_eq!(tokenizer.end_of_generation(), [257, 261, 262]);
    assert!(tokenizer.is_control(257) && tokenizer.is_control(261) && !tokenizer.is_control(262));
    for text in ["<eos>", "<|im_end|>", "a<eos><eos>"] {
        let ids = tokenizer.encode(text, Special::AsText).unwrap();
        assert!(ids.iter().all(|&id| !tokenizer.is_control(id)), "{text}: {ids:?}");
        assert_eq!(tokenizer.decode(&ids), text);
    }
    assert_eq!(tokenizer.encode("<eos><|im_end|>", Special::Parse).unwrap(), [257, 261]);
    assert_eq!(tokenizer.decode(&[257, 261]), "");
}

#[test]
fn ids_outside_and_unused_tokens_decode_to_nothing() {
    let tokenizer = build(&bpe(&[("spare", UNUSED), ("字", USER_DEFINED), ("sp", NORMAL)], &["s p"])).unwrap();
    assert_eq!(tokenizer.decode(&[256, 257, 258, 259, u32::MAX]), "字sp");
    assert_eq!((tokenizer.piece(u32::MAX), tokenizer.bytes(259)), ("", &b""[..]));
    assert!(!tokenizer.is_control(u32::MAX) && !tokenizer.is_end_of_generation(u32::MAX));
}

#[test]
fn of_equal_texts_the_first_is_used() {
    let tokenizer =
        build(&bpe(&[("ab", NORMAL), ("ab", NORMAL), ("<x>", CONTROL), ("<x>", CONTROL)], &["a b"])).unwrap();
    assert_eq!(tokenizer.encode("ab<x>", Special::Parse).unwrap(), [256, 258]);
    assert_eq!(tokenizer.decode(&[257]), "ab");
}

/// Control texts inside, across and at the ends of each other, and user-defined ones over them.
static ENTANGLED: LazyLock<[Tokenizer; 2]> = LazyLock::new(|| {
    let specials = [
        ("<|a|>", CONTROL),
        ("<|a|><|b|>", CONTROL),
        ("|>", CONTROL),
        ("><", CONTROL),
        ("aa", CONTROL),
        ("x", CONTROL),
        ("<|", USER_DEFINED),
        ("b|><|a|>b", USER_DEFINED),
        ("<<", UNKNOWN),
        ("\u{fdd0}\u{fdd1}", CONTROL),
    ];
    let spm: Vec<(&str, i32, f32)> = ["<unk>", "▁", "a", "b", "<", ">", "|", "<|b", "a|", "▁a"]
        .into_iter()
        .map(|text| (text, NORMAL, 0.0))
        .chain(specials.map(|(text, kind)| (text, kind, 0.0)))
        .collect();
    let bpe: Vec<(&str, i32)> = [("a|", NORMAL), ("|>b", NORMAL), (">b", NORMAL)].into_iter().chain(specials).collect();
    [build(&self::spm(&spm)).unwrap(), build(&self::bpe(&bpe, &["a |", "> b", "| >b"])).unwrap()]
});

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]
    #[test]
    fn shielded_text_never_becomes_control_tokens(
        parts in prop::collection::vec(
            prop::sample::select(vec![
                "<|a|>", "<|", "|>", "a", "b", "<", ">", "|", "x", " ", "é", "\u{fdd0}", "\u{fdd1}", "\u{fdd2}", "字",
            ]),
            0..20,
        ),
        before in prop::sample::select(vec!["", "<|a|>", "<", "a", "b|", "<|a"]),
        after in prop::sample::select(vec!["", "<|a|>", ">", "a", "|>", "a|><|b|>"]),
    ) {
        let text = parts.concat();
        for tokenizer in ENTANGLED.iter() {
            let shielded = tokenizer.shield(&text);
            prop_assert_eq!(tokenizer.unshield(&shielded), text.clone());
            let ids = tokenizer.encode(&shielded, Special::Parse).unwrap();
            prop_assert_eq!(&ids, &tokenizer.encode(&text, Special::AsText).unwrap());
            // A single character has no inside to break: it is text even in a template.
            prop_assert!(ids.iter().all(|&id| !tokenizer.is_control(id) || tokenizer.piece(id) == "x"), "{:?}", ids);
            // Nor can it complete what a template begins, or begin what a template completes.
            let around = tokenizer.encode(&format!("{before}{shielded}{after}"), Special::Parse).unwrap();
            let controls = |ids: &[TokenId]| ids.iter().filter(|&&id| tokenizer.is_control(id) && tokenizer.piece(id) != "x").count();
            let own = controls(&tokenizer.encode(before, Special::Parse).unwrap()) + controls(&tokenizer.encode(after, Special::Parse).unwrap());
            if !text.is_empty() {
                prop_assert!(controls(&around) <= own, "{:?} {:?} {:?}", before, text, after);
            }
        }
    }
}
