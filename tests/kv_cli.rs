//! The KV cache as a user meets it: flags, forks, a full context, `/kv`, comparisons and benches, through the real binary.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Duration;

use serde_json::Value;

fn micro(name: &str) -> String {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/data/micro/{name}.gguf")).display().to_string()
}

fn real_model() -> String {
    let path: PathBuf = Path::new(env!("CARGO_MANIFEST_DIR")).join("models/SmolLM2-135M-Instruct.Q4_1.gguf");
    assert!(path.exists(), "{} is missing: scripts/get_model.sh gets it", path.display());
    path.display().to_string()
}

fn sayfa(args: &[&str], stdin: &str) -> Output {
    let home = tempfile::tempdir().unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_sayfa"));
    command.current_dir(home.path()).env("HOME", home.path()).env_remove("SAYFA_MODEL").env_remove("SAYFA_MODELS");
    let mut command = assert_cmd::Command::from_std(command);
    command.args(args).write_stdin(stdin).timeout(Duration::from_secs(300)).output().unwrap()
}

fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).expect("standard output is UTF-8")
}

fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).expect("standard error is UTF-8")
}

fn json(output: &Output) -> Value {
    assert!(output.status.success(), "{}", stderr(output));
    serde_json::from_slice(&output.stdout).expect("one JSON object on standard output")
}

/// A completion by a random model that never ends by itself.
fn babble(args: &[&str]) -> Output {
    sayfa(&[&["run", "-m", &micro("Q4_0"), "--raw", "-p", "the rain in spain", "--ignore-eos"], args].concat(), "")
}

// ---- flags

#[test]
fn sizes_that_make_no_sense_are_refused_by_name_and_others_have_their_documented_meaning() {
    for (flags, code, words) in [
        (&["-c", "-1"][..], 2, &["--ctx-size"][..]),
        (&["-b", "0"], 2, &["--batch-size"]),
        (&["--keep", "-5", "--on-full", "evict"], 2, &["--keep", "-5"]),
        (&["--keep", "5"], 2, &["--keep", "--on-full evict"]),
        (&["--keep", "99999999999", "--on-full", "evict"], 2, &["--keep"]),
        (&["--keep", "1000000000", "--on-full", "evict", "-c", "128"], 1, &["--keep 1000000000", "128", "--keep 112"]),
        (&["--on-full", "evict", "-c", "15"], 1, &["15", "raise -c"]),
        (&["--on-full", "sometimes"], 2, &["--on-full"]),
        (&["--cache-tokens", "-1"], 2, &["--cache-tokens"]),
        (&["--n", "0"], 2, &["--n"]),
        (&["--kv-type", "int7"], 2, &["--kv-type"]),
        (&["-c", "1"], 1, &["context of 1:"]),
    ] {
        let output = babble(&[flags, &["-n", "1"]].concat());
        let said = stderr(&output);
        assert_eq!(output.status.code(), Some(code), "{flags:?}: {said}");
        assert!(output.stdout.is_empty() && words.iter().all(|word| said.contains(word)), "{flags:?}: {said}");
    }
    for flags in [
        &["-c", "0"][..],
        &["--cache-tokens", "0"],
        &["--on-full", "evict", "--keep", "0", "-c", "64"],
        &["--on-full", "evict", "--keep", "-1", "-c", "64"],
        &["--on-full", "stop"],
        &["--kv-type-k", "int8", "--kv-type-v", "f32"],
    ] {
        let output = babble(&[flags, &["-n", "3"]].concat());
        assert!(output.status.success(), "{flags:?}: {}", stderr(&output));
    }
}

// ---- several answers to one prompt

#[test]
fn n_answers_read_the_prompt_once_and_are_those_of_single_runs() {
    for kv_type in ["f16", "int8"] {
        let args = ["--kv-type", kv_type, "-n", "30", "-c", "128", "--json"];
        let many = json(&babble(&[&args[..], &["-s", "41", "--n", "4"]].concat()));
        let many = many["completions"].as_array().unwrap();
        assert_eq!(many.len(), 4);
        for (i, completion) in many.iter().enumerate() {
            let seed = (41 + i).to_string();
            let alone = json(&babble(&[&args[..], &["-s", &seed]].concat()));
            for key in ["text", "finish_reason", "prompt_tokens", "completion_tokens", "seed"] {
                assert_eq!(completion[key], alone[key], "{kv_type}, seed {seed}");
            }
            let prompt_tokens = completion["prompt_tokens"].as_u64().unwrap();
            assert_eq!(completion["cached_tokens"], if i == 0 { 0 } else { prompt_tokens - 1 });
        }
        assert_ne!(many[0]["text"], many[1]["text"]);
    }
}

#[test]
fn n_answers_stand_apart_by_a_blank_line_and_standard_error_counts_them_if_asked() {
    let model = real_model();
    let args = ["run", "-m", &model, "-p", "Say hello.", "-n", "6", "--temp", "0", "-c", "128"];
    let one = stdout(&sayfa(&args, ""));
    let three = sayfa(&[&args[..], &["--n", "3"]].concat(), "");
    assert_eq!(stdout(&three), format!("{one}\n{one}\n{one}"));
    assert!(three.stderr.is_empty(), "{}", stderr(&three));
    let verbose = stderr(&sayfa(&[&args[..], &["--n", "3", "-v", "-s", "7"]].concat(), ""));
    assert!(verbose.contains("--- 2 of 3, seed 8") && verbose.contains("--- 3 of 3, seed 9"), "{verbose}");
}

// ---- full contexts

#[test]
fn a_full_context_stops_with_its_size_or_goes_on_with_one_notice_and_the_same_beginning() {
    for kv_type in ["f16", "int8"] {
        let args = ["-c", "128", "-n", "400", "-s", "3", "--json", "--kv-type", kv_type];
        let output = babble(&args);
        let stopped = json(&output);
        let held = stopped["prompt_tokens"].as_u64().unwrap() + stopped["completion_tokens"].as_u64().unwrap();
        assert_eq!((&stopped["finish_reason"], held), (&"length".into(), 128));
        assert!(stderr(&output).contains("the context of 128 tokens is full"), "{}", stderr(&output));
        for keep in ["0", "20", "-1", "112"] {
            let output = babble(&[&args[..], &["--on-full", "evict", "--keep", keep]].concat());
            let went_on = json(&output);
            assert_eq!((&went_on["finish_reason"], &went_on["completion_tokens"]), (&"length".into(), &400.into()));
            let text = went_on["text"].as_str().unwrap();
            assert!(text.starts_with(stopped["text"].as_str().unwrap().trim_end_matches('\u{fffd}')), "--keep {keep}");
            let said = stderr(&output);
            let evicted = said.lines().filter(|line| line.contains("the context of 128 tokens is full")).count();
            assert_eq!((evicted, said.contains("without the oldest 16")), (1, true), "--keep {keep}: {said}");
        }
    }
}

#[test]
fn at_the_trained_length_the_rest_is_computed_anew_and_said() {
    // the fixture was trained for 512 tokens
    let output = babble(&["-c", "128", "-n", "600", "--on-full", "evict", "--json"]);
    let said = stderr(&output);
    assert_eq!(json(&output)["completion_tokens"], 600);
    assert!(said.contains("the oldest 56 tokens were dropped and the other 72 computed again"), "{said}");
}

#[test]
fn minus_two_still_ends_at_the_context_and_a_prompt_beyond_it_is_an_error() {
    let output = babble(&["-c", "64", "-n", "-2", "--on-full", "evict", "--json"]);
    let answer = json(&output);
    let held = answer["prompt_tokens"].as_u64().unwrap() + answer["completion_tokens"].as_u64().unwrap();
    assert_eq!((held, stderr(&output).as_str()), (64, ""));
    let long = "x".repeat(200);
    let output = sayfa(&["run", "-m", &micro("Q4_0"), "--raw", "-p", &long, "-c", "64", "--on-full", "evict"], "");
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("202 tokens") && stderr(&output).contains("of 64"), "{}", stderr(&output));
}

// ---- chat

/// Lines into a chat with a random model, which completes text; standard error holds what the commands say.
fn chat(args: &[&str], lines: &str) -> Output {
    let model = micro("Q4_0");
    let length = if args.contains(&"-n") { &[][..] } else { &["-n", "10"] };
    let fixed = ["chat", "-m", &model, "--temp", "0", "--ignore-eos", "-v"];
    sayfa(&[&fixed[..], length, args].concat(), lines)
}

#[test]
fn a_chat_that_forgets_goes_on_past_its_context_also_after_undo_and_retry() {
    let turns = "and so the story went on and on\n".repeat(8);
    let lines = format!("{turns}/retry\n/undo\n{turns}/fork b\n{turns}/switch main\n/retry\n/clear\nhi\n");
    for kv_type in ["f16", "int8"] {
        let output = chat(&["-c", "96", "--on-full", "evict", "--keep", "20", "--kv-type", kv_type], &lines);
        let said = stderr(&output);
        assert!(output.status.success(), "{said}");
        assert_eq!(said.matches(" tokens/s, context ").count(), 8 + 1 + 8 + 8 + 1 + 1, "{said}");
        assert!(said.contains("without the oldest"), "{said}");
    }
    let stopped = chat(&["-c", "96"], &lines);
    assert_eq!(stopped.status.code(), Some(1));
    assert!(stderr(&stopped).contains("leaves no room in the context of 96"), "{}", stderr(&stopped));
    let after_clear = stderr(&stopped).split("Cleared session context\n").nth(1).expect("it was cleared").to_string();
    assert!(after_clear.starts_with("[stopped after -n 10 tokens]\n[10 tokens"), "/clear makes room: {after_clear}");
    let long = chat(&["-c", "96", "--on-full", "evict"], &format!("hi\n{}\nhi\n", "x".repeat(200)));
    assert!(stderr(&long).contains("the message has 20") && long.status.code() == Some(1), "{}", stderr(&long));
}

#[test]
fn branches_keep_their_words_and_share_their_pages() {
    let lines = "once upon a time there was a king\n/fork other\nhe had a daughter\n/kv\n/switch\n/switch main\n/retry\n/stats\n\
                 /switch other\n/show messages\n/switch nowhere\n/fork main\n/fork\n/fork two words\n";
    let model = real_model();
    let args = ["chat", "-m", &model, "--temp", "0", "-v", "-n", "12", "-c", "256"];
    let output = sayfa(&args, lines);
    let (said, answers) = (stderr(&output), stdout(&output));
    let answers: Vec<_> = answers.lines().collect();
    assert_eq!((answers.len(), answers[0]), (3, answers[2]), "a retry at temperature 0 says the same: {said}");
    // 49 tokens when the branches part: three full pages, and the last one copied by the first to go on
    let main = said.lines().find(|line| line.starts_with("main ")).expect("a line of /kv");
    assert!(main.contains("49 tokens in 4 pages: 3 shared, 1 own, the last partial (1 of 16)"), "{said}");
    assert!(said.contains("\n|===+|\n") && said.contains("\n|===#+|\n"), "{said}");
    assert!(said.contains("here: other; waiting: main"), "{said}");
    assert!(said.lines().all(|line| line.chars().count() <= 120), "{said}");
    let prompt = said.lines().find(|line| line.starts_with("prompt ")).expect("a line of /stats");
    let numbers: Vec<usize> = prompt.split(|c: char| !c.is_ascii_digit()).filter_map(|n| n.parse().ok()).collect();
    assert_eq!(numbers[1], numbers[0] - 1, "all but the last token came from the cache: {prompt}");
    assert_eq!(said.matches(r#""role":"user""#).count(), 2, "{said}");
    for error in ["no branch 'nowhere': there are other, main", "branch 'main' already", "needs a name of one word"] {
        assert!(said.contains(error), "{error}: {said}");
    }
    assert_eq!(output.status.code(), Some(1), "four lines failed");
}

#[test]
fn branches_beyond_the_pool_give_up_their_pages_and_are_read_anew() {
    let story = "a long message that fills the pages of its branch";
    let lines: String = (0..6).map(|i| format!("{story} {i}\n/fork b{i}\nmore {i}\n")).collect();
    for cache in ["0", "64"] {
        let all = format!("{lines}/switch main\n/retry\n/switch b2\n/retry\n/kv\n");
        let args = ["-c", "512", "--cache-tokens", cache, "-n", "4"];
        let output = chat(&args, &all);
        assert!(output.status.success(), "{}", stderr(&output));
        let roomy = chat(&["-c", "512", "--cache-tokens", "100000", "-n", "4"], &all);
        assert_eq!(stdout(&output), stdout(&roomy), "--cache-tokens {cache}");
        assert!(stderr(&output).contains("b5        0 tokens in 0 pages"), "{}", stderr(&output));
    }
}

#[test]
fn clearing_a_chat_three_hundred_times_leaves_nothing_live() {
    let output =
        chat(&["-n", "3", "-c", "96", "--cache-tokens", "32"], &("to and fro\n/clear\n".repeat(300) + "/kv\n"));
    let said = stderr(&output);
    assert!(output.status.success(), "{said}");
    let blocks = |sign: &str| -> usize {
        let line = said.lines().rev().find(|line| line.starts_with(sign)).expect("a line of /kv");
        line[1..].split_whitespace().next().expect("a number").parse().expect("a number")
    };
    assert_eq!((blocks("# "), blocks("= ")), (0, 0), "{said}");
    // six blocks of context, two of cache, and the spare one of the conversation
    assert!(blocks("o ") <= 2 && blocks("o ") + blocks(". ") == 9, "{said}");
}

// ---- numbers

#[test]
fn compare_kv_tells_the_distance_beside_the_floor() {
    let text = "The rain in Spain stays mainly in the plain. ".repeat(4);
    let args = ["perplexity", "-m", &micro("F32"), "--compare-kv"];
    let report = json(&sayfa(&[&args[..], &["--json"]].concat(), &text));
    assert_eq!((report["kv_type"].as_str(), report["tokens"].as_u64()), (Some("int8"), Some(142)), "{report}");
    let number = |who: &str, key: &str| report[who][key].as_f64().unwrap();
    for who in ["chosen", "floor"] {
        assert!(number(who, "mean_kl") > 0.0 && number(who, "mean_kl") < 0.1, "{report}");
        assert!((0.5..=1.0).contains(&number(who, "top1_agreement")), "{report}");
        let (first, last) = (number(who, "first_quarter_mean_kl"), number(who, "last_quarter_mean_kl"));
        assert!(first > 0.0 && last > 0.0, "{report}");
    }
    let ratio = number("chosen", "mean_kl") / number("floor", "mean_kl");
    assert!((report["ratio"].as_f64().unwrap() / ratio - 1.0).abs() < 1e-9);
    let same = json(&sayfa(&[&args[..], &["--json", "--kv-type", "f32"]].concat(), &text));
    assert_eq!((same["ratio"].as_f64(), same["kv_type"].as_str()), (Some(1.0), Some("f32")));
    let windows = json(&sayfa(&[&args[..], &["--json", "-c", "50"]].concat(), &text));
    assert_eq!((windows["tokens"].as_u64(), windows["window_tokens"].as_u64()), (Some(142), Some(50)));
    let human = stdout(&sayfa(&args, &text));
    assert!(human.contains("int8 ") && human.contains("f32 ") && human.contains("times as far"), "{human}");
}

#[test]
fn bench_measures_kv_types_in_turn_and_decode_without_a_cache() {
    let args = ["bench", "-m", &micro("Q4_1"), "-r", "1", "-t", "1", "--json"];
    let report =
        json(&sayfa(&[&args[..], &["-p", "0", "-n", "4", "-d", "0,64", "--kv-types", "f16,int8"]].concat(), ""));
    let tests = report["tests"].as_array().unwrap();
    let what: Vec<_> = tests.iter().map(|t| (t["kv_type"].as_str().unwrap(), t["depth"].as_u64().unwrap())).collect();
    assert_eq!(what, [("f16", 0), ("f16", 64), ("int8", 0), ("int8", 64)]);
    let bytes = |i: usize| tests[i]["bytes_per_token"].as_f64().unwrap();
    // The difference of two depths is 64 tokens of keys and values; int8 takes more than half of f16 by its scales.
    let share = (bytes(3) - bytes(2)) / (bytes(1) - bytes(0));
    assert!(share > 0.5 && share < 0.7, "{share}");

    let report = json(&sayfa(&[&args[..], &["--no-kv-cache"]].concat(), ""));
    let tests = report["tests"].as_array().unwrap();
    let names: Vec<_> = tests.iter().map(|t| (t["name"].as_str().unwrap(), t["depth"].as_u64().unwrap())).collect();
    let both = |depth| [("decode", depth), ("decode, no cache", depth)];
    assert_eq!(names, [both(64), both(128), both(256)].concat());
    let speed = |i: usize| tests[i]["tokens_per_second"].as_f64().unwrap();
    assert!(speed(5) < speed(4), "256 tokens take longer than one");
    let refused = sayfa(&["bench", "-m", &micro("Q4_1"), "--no-kv-cache", "-n", "4"], "");
    assert_eq!(refused.status.code(), Some(2));
}
