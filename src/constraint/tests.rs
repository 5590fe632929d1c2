//! Constraints over the vocabulary of the small model: what they let through, where they let an answer end.

use std::path::Path;
use std::sync::LazyLock;

use super::*;
use crate::gguf::Gguf;
use crate::tokenizer::Special;

static TOKENIZER: LazyLock<Tokenizer> = LazyLock::new(|| {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("models/SmolLM2-135M-Instruct.Q4_1.gguf");
    let gguf = Gguf::open(&path).unwrap_or_else(|error| panic!("{error}: run `scripts/get_model.sh --tests` first"));
    Tokenizer::from_gguf(&gguf).unwrap()
});

fn bound(grammar: &Grammar) -> Constraint {
    Constraint::new(grammar, &TOKENIZER).unwrap()
}

/// Whether all of `text` may be said, in these tokens, and the answer may then end.
fn follows(constraint: &mut Constraint, ids: &[TokenId]) -> bool {
    constraint.start().unwrap();
    for &id in ids {
        if !constraint.allows(id) {
            return false;
        }
        constraint.accept(id).unwrap();
    }
    let ends: Vec<bool> = TOKENIZER.end_of_generation().iter().map(|&id| constraint.allows(id)).collect();
    let is_satisfied = constraint.is_satisfied();
    assert!(
        constraint.is_complete() || ends.iter().all(|&end| end == is_satisfied),
        "an answer may end where it is satisfied, by any end token, and nowhere else: {ends:?}"
    );
    is_satisfied
}

/// The same however the text is cut into tokens: as the tokenizer does it, and byte by byte.
fn takes(constraint: &mut Constraint, text: &str) -> bool {
    let whole = follows(constraint, &TOKENIZER.encode(text, Special::AsText).unwrap());
    let bytes: Vec<TokenId> = text.bytes().map(|byte| BYTES[byte as usize]).collect();
    assert_eq!(follows(constraint, &bytes), whole, "{text:?} byte by byte");
    whole
}

/// The token of each byte; a byte that no UTF-8 has may lack one.
static BYTES: LazyLock<Vec<TokenId>> = LazyLock::new(|| {
    let find = |byte: u8| (0..TOKENIZER.vocab() as TokenId).find(|&id| TOKENIZER.bytes(id) == [byte]);
    (0..=255).map(|byte| find(byte).unwrap_or(TokenId::MAX)).collect()
});

fn check(grammar: &Grammar, good: &[&str], bad: &[&str]) {
    let mut constraint = bound(grammar);
    for text in good {
        assert!(takes(&mut constraint, text), "{text:?} follows it");
    }
    for text in bad {
        assert!(!takes(&mut constraint, text), "{text:?} does not follow it");
    }
}

fn schema(text: &str) -> Grammar {
    Grammar::json_schema(text).unwrap()
}

fn gbnf(text: &str) -> Grammar {
    Grammar::lark_or_gbnf(text).unwrap()
}

fn refusal(grammar: &Grammar) -> String {
    let error = format!("{:#}", Constraint::new(grammar, &TOKENIZER).err().expect("it must be refused"));
    assert!(!error.contains('\n') && !error.contains("backtrace"), "{error}");
    error
}

#[test]
fn a_schema_lets_its_own_documents_through() {
    let person = r#"{"type": "object", "properties": {"name": {"type": "string", "maxLength": 5},
        "age": {"type": "integer", "minimum": 0, "maximum": 150}}, "required": ["name", "age"], "additionalProperties": false}"#;
    check(
        &schema(person),
        &[r#"{"name":"Zoë","age":7}"#, r#"{"name": "A\n\"B\"", "age": 150}"#, "{\n  \"name\": \"\",\n  \"age\": 0\n}"],
        &[
            "",
            r#"{"name":"Zoë"}"#,
            r#"{"name":"Zoë","age":151}"#,
            r#"{"name":"Zoë","age":-1}"#,
            r#"{"name":"longer","age":1}"#,
            r#"{"name":"Zoë","age":7,"x":1}"#,
            r#"{"name":"Zoë","age":7} and more"#,
            r#"{"name":    "Zoë","age":7}"#,
        ],
    );
}

#[test]
fn the_form_of_white_space_can_be_chosen() {
    let compact = r#"{"type": "array", "items": {"type": "boolean"}, "x-guidance": {"whitespace_flexible": false}}"#;
    check(&schema(compact), &["[true,false]", "[]"], &["[true, false]", "[ ]"]);
}

#[test]
fn true_is_any_json() {
    check(&schema("true"), &["1", r#"{"a":[null,"x"]}"#, "\"\""], &["x", "{a:1}", "[1"]);
}

#[test]
fn a_regular_expression_is_matched_as_a_whole() {
    check(&Grammar::regex(r"\d{3}-[a-z]+|é"), &["123-x", "123-word", "é"], &["12-x", "123-", "123-X", "x123-x", "éé"]);
    check(&Grammar::regex("^(yes|no)$"), &["yes", "no"], &["maybe", "yes "]);
}

#[test]
fn lark_grammars_with_rules_terminals_and_json() {
    let calls = "start: call (\";\" call)*\ncall: NAME \"(\" %json {\"type\": \"integer\"} \")\"\nNAME: /[a-z_]+/";
    let calls = Grammar::lark_or_gbnf(calls).unwrap();
    check(&calls, &["f(1)", "f_x(-20);g(3)"], &["f()", "F(1)", "f(1);"]);
}

#[test]
fn gbnf_grammars_mean_the_same_as_in_llama_cpp() {
    let sums = "root ::= (expr \"=\" ws term \"\\n\")+\nexpr ::= term ([-+*/] term)*\n\
                term ::= num | \"(\" ws expr \")\" ws\nnum ::= [0-9]+ ws\nws ::= [ \\t\\n]*";
    check(&gbnf(sums), &["1+2= 3\n", "( 1 *22 )/3=7\n4=4\n"], &["1+=2\n", "1+2=3", "1+(2=3\n", "x=1\n"]);
    let json = r#"root ::= object
        value ::= object | array | string | number | ("true" | "false" | "null") ws
        object ::= "{" ws (string ":" ws value ("," ws string ":" ws value)*)? "}" ws
        array ::= "[" ws (value ("," ws value)*)? "]" ws
        string ::= "\"" ([^"\\\x7F\x00-\x1F] | "\\" (["\\bfnrt] | "u" [0-9a-fA-F]{4}))* "\"" ws
        number ::= ("-"? ([0-9] | [1-9] [0-9]{0,15})) ("." [0-9]+)? ws
        ws ::= | " " | "\n" [ \t]{0,20}"#;
    check(
        &gbnf(json),
        &["{}", r#"{"a": [1, -2.5, "é\u00e9"], "b":{"c" :null}}"#, "{\n  \"a\": true\n}\n"],
        &["[]", r#"{"a": 01}"#, r#"{a: 1}"#, r#"{"a": 1,}"#, "{}x"],
    );
}

#[test]
fn what_looks_like_a_word_of_the_grammar_may_go_on() {
    check(&gbnf("root ::= \"true\" | [a-z]+"), &["true", "trueness", "t"], &["True"]);
    let nested = "root ::= \"(\" root \")\" | \"true\" | [a-z]+ | \"\"";
    check(&gbnf(nested), &["((true))", "(trueness)", "()", "", "(tru)"], &["(true", "true)"]);
    let words = "root ::= item | \"<\" root \">\"\nitem ::= [a-z]+ end?\nend ::= \"s\" \"!\"?";
    check(&gbnf(words), &["words", "<words!>", "<<s>>"], &["<word!>", "!"]);
}

#[test]
fn control_tokens_cannot_be_said_in_a_text() {
    let constraint = bound(&Grammar::regex("(?s:.)*"));
    let vocab = 0..TOKENIZER.vocab() as TokenId;
    let allowed: Vec<TokenId> = vocab.filter(|&id| TOKENIZER.is_control(id) && constraint.allows(id)).collect();
    assert_eq!(allowed, TOKENIZER.end_of_generation(), "only the end tokens");
    assert!(!constraint.allows(TOKENIZER.vocab() as TokenId) && !constraint.allows(TokenId::MAX));
}

#[test]
fn a_complete_answer_takes_nothing_more_and_can_start_anew() {
    let mut constraint = bound(&Grammar::regex("ab"));
    for _ in 0..2 {
        constraint.start().unwrap();
        assert!(!constraint.is_satisfied() && !constraint.is_complete());
        for id in TOKENIZER.encode("ab", Special::AsText).unwrap() {
            constraint.accept(id).unwrap();
        }
        assert!(constraint.is_satisfied() && constraint.is_complete());
        assert!((0..TOKENIZER.vocab() as TokenId).all(|id| !constraint.allows(id)));
    }
    let mut copy = constraint.clone();
    copy.start().unwrap();
    assert!(constraint.is_complete() && !copy.is_complete(), "a copy goes its own way");
}

#[test]
fn a_token_that_is_not_allowed_is_an_error_and_not_a_panic() {
    let mut constraint = bound(&Grammar::regex("ab"));
    let x = TOKENIZER.encode("x", Special::AsText).unwrap()[0];
    assert!(constraint.accept(x).is_err());
}

#[test]
fn what_cannot_be_a_constraint_is_refused_in_a_sentence() {
    let schema_error = |text: &str| format!("{:#}", Grammar::json_schema(text).unwrap_err());
    assert!(schema_error("{").starts_with("not JSON: EOF"), "{}", schema_error("{"));
    assert_eq!(schema_error("[1]"), "not a JSON schema: that is an object, or true");
    for (grammar, want) in [
        (schema(r#"{"type": "string", "minLength": 5, "maxLength": 2}"#), "minLength"),
        (schema(r#"{"type": "array", "uniqueItems": true}"#), "uniqueItems"),
        (schema(r##"{"$ref": "#/$defs/none"}"##), "none"),
        (schema(r##"{"$ref": "#"}"##), "no text can follow it"),
        (Grammar::regex(r"[^\s\S]"), "no text can follow it"),
        (schema(r#"{"type": "strin"}"#), "strin"),
        (Grammar::regex("a("), "regex parse error: unclosed group"),
        (Grammar::regex("(?<=a)b"), "look-around, including look-ahead and look-behind, is not supported"),
        (Grammar::lark_or_gbnf("start: B").unwrap(), "B"),
        (Grammar::lark_or_gbnf("nothing of the kind").unwrap(), "xpected"),
        (Grammar::lark_or_gbnf("").unwrap(), "start"),
    ] {
        let error = refusal(&grammar);
        assert!(error.contains(want), "{want} in: {error}");
    }
}

#[test]
fn huge_constraints_are_refused_or_followed_and_never_the_end_of_the_program() {
    let chain = |n: usize, last: &str| {
        let rules: String = (0..n).map(|i| format!("r{i} ::= \"a\" r{}\n", i + 1)).collect();
        format!("root ::= r0\n{rules}r{n} ::= {last}\n")
    };
    let references: Vec<String> = (0..5000)
        .map(|i| format!(r##""d{i}": {{"type": "array", "items": {{"$ref": "#/$defs/d{}"}}}}"##, i + 1))
        .collect();
    let references = format!(r##"{{"$ref": "#/$defs/d0", "$defs": {{{}, "d5000": true}}}}"##, references.join(", "));
    for grammar in [
        Grammar::regex("(a{1000}){1000}{1000}"),
        Grammar::regex("[ab]*a[ab]{2000}c"),
        gbnf(&chain(15_000, "\"b\"")),
        gbnf(&chain(15_000, "\"b\" root?")),
        schema(&references),
        schema(r##"{"$ref": "#"}"##),
    ] {
        if let Ok(mut constraint) = Constraint::new(&grammar, &TOKENIZER) {
            let a = TOKENIZER.encode("a", Special::AsText).unwrap()[0];
            for _ in 0..20 {
                if !constraint.allows(a) || constraint.accept(a).is_err() {
                    break;
                }
            }
        }
    }
    let error = Grammar::lark_or_gbnf(&chain(30_000, "\"b\"")).unwrap_err().to_string();
    assert_eq!(error, "30003 lines of grammar, where 20000 are the most");
}
