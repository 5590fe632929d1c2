//! Constrained answers of the real model: what ends by itself follows the constraint, what is cut off says so.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;
use tempfile::TempDir;

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn model() -> PathBuf {
    let path = root().join("models/SmolLM2-135M-Instruct.Q4_1.gguf");
    assert!(path.exists(), "{} is missing: scripts/get_model.sh --tests gets it", path.display());
    path
}

/// A greedy answer, unless `flags` say otherwise.
fn run(prompt: &str, flags: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_sayfa"));
    command.args(["run", "--no-stdin", "-c", "1024", "-p", prompt, "-m"]).arg(model()).args(flags);
    if !flags.contains(&"--temp") {
        command.args(["--temp", "0"]);
    }
    command.env("HOME", "/nonexistent").output().unwrap()
}

fn stdout(output: &Output) -> &str {
    assert!(output.status.success(), "{}", stderr(output));
    std::str::from_utf8(&output.stdout).unwrap()
}

fn stderr(output: &Output) -> &str {
    std::str::from_utf8(&output.stderr).unwrap()
}

fn json(output: &Output) -> Value {
    serde_json::from_str(stdout(output)).unwrap()
}

fn lines(output: &Output) -> Vec<Value> {
    stdout(output).lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// Ten seeds of each of the five schemas; the script itself takes 200 where more are wanted.
#[test]
fn every_answer_that_ends_by_itself_is_valid_by_its_schema() {
    let python = std::env::var("SAYFA_TEST_PYTHON").unwrap_or_else(|_| "python3".into());
    let judged = Command::new(&python)
        .arg(root().join("scripts/check_constraints.py"))
        .args(["--seeds", "10", "--program", env!("CARGO_BIN_EXE_sayfa")])
        .env("PYTHONIOENCODING", "utf-8")
        .output()
        .unwrap_or_else(|error| panic!("{python}: {error}: set SAYFA_TEST_PYTHON to a Python that has jsonschema"));
    let said = String::from_utf8_lossy(&judged.stdout);
    assert!(judged.status.success(), "{said}{}", String::from_utf8_lossy(&judged.stderr));
    assert!(said.ends_with("all 10 answers to each of 5 schemas that ended by themselves are valid\n"), "{said}");
}

#[test]
fn a_choice_of_words_is_answered_with_one_of_them() {
    let answer = run("What is the colour of grass?", &["--regex", "red|green|blue", "--json"]);
    let answer = json(&answer);
    assert!(["red", "green", "blue"].contains(&answer["text"].as_str().unwrap()), "{answer}");
    assert_eq!(answer["finish_reason"], "stop");
}

#[test]
fn grammars_come_from_files_in_both_notations() {
    let folder = TempDir::new().unwrap();
    for (name, text) in [
        ("lark", "start: WORD (\"-\" WORD){2}\nWORD: /[a-z]{2,4}/"),
        ("gbnf", "root ::= word (\"-\" word){2}\nword ::= [a-z]{2,4}"),
        ("nested.gbnf", "root ::= word \"-\" rest\nrest ::= word \"-\" word | \"(\" rest \")\"\nword ::= [a-z]{2,4}"),
    ] {
        let file = folder.path().join(name);
        std::fs::write(&file, text).unwrap();
        let output = run("Say three words.", &["--grammar", file.to_str().unwrap(), "-n", "60"]);
        let inline = run("Say three words.", &["--grammar", text, "-n", "60"]);
        assert_eq!(stdout(&output), stdout(&inline), "{name}: the grammar itself is the same as its file");
        let words: Vec<&str> =
            stdout(&output).trim_end().split('-').map(|word| word.trim_matches(['(', ')'])).collect();
        assert_eq!(words.len(), 3, "{name}: {words:?}");
        let is_word = |word: &&str| (2..=4).contains(&word.len()) && word.bytes().all(|byte| byte.is_ascii_lowercase());
        assert!(words.iter().all(is_word), "{name}: {words:?}");
    }
}

#[test]
fn an_answer_that_is_cut_off_says_so_in_json_and_on_standard_error() {
    let schema = r#"{"type": "array", "items": {"type": "string"}, "minItems": 20}"#;
    let cut = run("List animals.", &["--json-schema", schema, "-n", "5", "--json"]);
    assert_eq!(json(&cut)["finish_reason"], "length");
    assert!(stderr(&cut).contains("cut off before it followed --json-schema"), "{}", stderr(&cut));
    let stopped = run("List animals.", &["--json-schema", schema, "--stop", "\"", "-n", "50"]);
    assert!(stderr(&stopped).contains("cut off before it followed --json-schema"), "{}", stderr(&stopped));
    let whole = run("Yes or no?", &["--regex", "yes|no", "-n", "5"]);
    assert_eq!(stderr(&whole), "");
}

#[test]
fn the_same_seed_gives_the_same_constrained_answer_on_any_number_of_threads() {
    let schema = root().join("tests/data/schemas/nested.json");
    let flags = ["--json-schema", schema.to_str().unwrap(), "--temp", "1", "--seed", "7", "-n", "40"];
    let one = run("Describe a person.", &[&flags[..], &["-t", "1"]].concat());
    let two = run("Describe a person.", &[&flags[..], &["-t", "2"]].concat());
    assert_eq!(stdout(&one), stdout(&two));
}

#[test]
fn end_tokens_may_be_forbidden_and_a_complete_answer_ends_all_the_same() {
    let output = run("Yes or no?", &["--regex", "yes|no", "--ignore-eos", "-n", "9", "--json"]);
    assert!(["yes", "no"].contains(&json(&output)["text"].as_str().unwrap()), "{}", stdout(&output));
}

#[test]
fn what_is_no_constraint_is_a_usage_error_that_names_the_flag() {
    for (flags, want) in [
        (["--json-schema", "{"], "--json-schema: not JSON"),
        (["--json-schema", r#"{"type": "strin"}"#], "--json-schema: Invalid type: strin"),
        (["--regex", "a("], "--regex: regex parse error: unclosed group"),
    ] {
        let output = run("hi", &flags);
        assert_eq!(output.status.code(), Some(2), "{flags:?}");
        assert!(stderr(&output).contains(want) && stderr(&output).lines().count() == 1, "{}", stderr(&output));
        assert!(output.stdout.is_empty());
    }
    let missing = run("hi", &["--grammar", "/nonexistent/g.gbnf"]);
    assert_eq!(missing.status.code(), Some(1));
    assert!(stderr(&missing).contains("--grammar /nonexistent/g.gbnf"), "{}", stderr(&missing));
    let two = run("hi", &["--regex", "a", "--json-schema", "true"]);
    assert_eq!(two.status.code(), Some(2));
}

#[test]
fn logprobs_are_the_models_own_and_best_first() {
    let flags = ["--json", "--logprobs", "3", "-n", "4"];
    let answer = json(&run("Name a colour.", &flags));
    let all = answer["logprobs"].as_array().unwrap();
    assert_eq!(all.len(), 4);
    let text: String = all.iter().map(|one| one["token"].as_str().unwrap()).collect();
    assert_eq!(text, answer["text"].as_str().unwrap());
    for one in all {
        let top = one["top_logprobs"].as_array().unwrap();
        let logprobs: Vec<f64> = top.iter().map(|one| one["logprob"].as_f64().unwrap()).collect();
        assert!(top.len() == 3 && logprobs.is_sorted_by(|a, b| a >= b) && logprobs[0] <= 0.0, "{one}");
        assert!(logprobs.iter().map(|logprob| logprob.exp()).sum::<f64>() <= 1.0 + 1e-6, "{one}");
        // A greedy answer takes the likeliest each time.
        assert_eq!((&one["id"], &one["logprob"]), (&top[0]["id"], &top[0]["logprob"]), "{one}");
    }
    // They do not change with what the sampler does to the logits.
    let hot = json(&run("Name a colour.", &[&flags[..], &["--temp", "2", "--top-k", "1", "--min-p", "0.5"]].concat()));
    assert_eq!(hot["logprobs"], answer["logprobs"]);
    let refused = run("hi", &["--logprobs", "3"]);
    assert_eq!(refused.status.code(), Some(2));
    assert!(stderr(&refused).contains("--logprobs says nothing without --json"), "{}", stderr(&refused));
}

#[test]
fn streamed_json_is_the_answer_in_pieces_and_then_its_report() {
    let flags = ["-n", "6", "--temp", "1", "--seed", "3"];
    let whole = json(&run("Say a sentence with an emoji 😀.", &[&flags[..], &["--json"]].concat()));
    let streamed = run("Say a sentence with an emoji 😀.", &[&flags[..], &["--stream-json", "--n", "2"]].concat());
    let lines = lines(&streamed);
    let first: Vec<&Value> = lines.iter().filter(|line| line["index"] == 0).collect();
    let (report, pieces) = first.split_last().unwrap();
    let text: String = pieces.iter().map(|piece| piece["text"].as_str().unwrap()).collect();
    assert!(pieces.len() > 1 && pieces.iter().all(|piece| piece.get("finish_reason").is_none()));
    assert_eq!((report["text"].as_str(), &report["seed"]), (Some(text.as_str()), &whole["seed"]));
    assert_eq!((&report["text"], &report["finish_reason"]), (&whole["text"], &whole["finish_reason"]));
    let second = lines.iter().rfind(|line| line["index"] == 1).unwrap();
    assert_eq!(second["seed"], 4);
    let with = run("hi", &["-n", "3", "--stream-json", "--logprobs", "1"]);
    let with: Vec<Value> = stdout(&with).lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(
        with.iter().filter(|line| line.get("finish_reason").is_none() && line["logprobs"]["id"].is_u64()).count(),
        3
    );
}
