//! The sampler's flags as a user meets them: what each does to a real answer, which values are refused, what is said
//! about flags that change nothing.

use std::path::Path;
use std::time::Duration;

use serde_json::Value;

/// The program with the default model and a prompt that it answers in many ways; eight tokens, a fixed seed.
fn run(flags: &[&str]) -> std::process::Output {
    let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("models/SmolLM2-135M-Instruct.Q4_1.gguf");
    assert!(model.is_file(), "{} is missing: scripts/get_model.sh gets it", model.display());
    let folder = tempfile::tempdir().unwrap();
    let mut command = assert_cmd::Command::new(env!("CARGO_BIN_EXE_sayfa"));
    command.current_dir(folder.path()).env("HOME", folder.path()).env_remove("SAYFA_MODEL").env_remove("SAYFA_MODELS");
    command.args(["run", "-m"]).arg(model).args(["--raw", "--json", "-c", "256", "-p", PROMPT]);
    if !flags.contains(&"-s") {
        command.args(["-s", "7"]);
    }
    if !flags.contains(&"-n") {
        command.args(["-n", "8"]);
    }
    command.args(flags).write_stdin("").timeout(Duration::from_secs(120)).output().unwrap()
}

/// Says the same three times, so that whatever looks back finds something.
const PROMPT: &str = "One day the cat sat on the mat. One day the dog sat on the mat. One day the";

fn stderr(output: &std::process::Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

fn text(flags: &[&str]) -> String {
    let output = run(flags);
    assert!(output.status.success(), "{flags:?}: {}", stderr(&output));
    assert_eq!(stderr(&output), "", "{flags:?}");
    let json: Value = serde_json::from_slice(&output.stdout).unwrap();
    json["text"].as_str().unwrap().to_string()
}

fn refused(flags: &[&str], words: &str) {
    let output = run(flags);
    let said = stderr(&output);
    assert_eq!(output.status.code(), Some(2), "{flags:?}: {said}");
    assert!(output.stdout.is_empty() && said.lines().count() == 1, "{flags:?}: {said}");
    assert!(said.contains(flags[0].split('=').next().unwrap()) && said.contains(words), "{flags:?}: {said}");
}

#[test]
fn every_flag_at_an_extreme_changes_the_answer() {
    let usual = text(&["--temp", "1.5"]);
    for flags in [
        &["--temp", "0"][..],
        &["--temp", "1.5", "--dynatemp-range", "1.5"],
        &["--temp", "1.5", "--dynatemp-range", "1", "--dynatemp-exp", "50"],
        &["--temp", "1.5", "--top-k", "1"],
        &["--temp", "1.5", "--top-k", "0", "--top-p", "1", "--min-p", "0"],
        &["--temp", "1.5", "--top-p", "0.01"],
        &["--temp", "1.5", "--min-p", "1"],
        &["--temp", "1.5", "--typical", "0.01"],
        &["--temp", "1.5", "--top-nsigma", "0.01"],
        &["--temp", "1.5", "--xtc-probability", "1", "--xtc-threshold", "0.01"],
        &["--temp", "1.5", "--repeat-penalty", "100"],
        &["--temp", "1.5", "--presence-penalty", "-100"],
        &["--temp", "1.5", "--frequency-penalty", "100"],
        &["--temp", "1.5", "--dry-multiplier", "1000"],
        &["--temp", "1.5", "--mirostat", "2", "--mirostat-ent", "0.01"],
        &["--temp", "1.5", "--mirostat", "2", "--mirostat-ent", "20"],
        &["--temp", "1.5", "--samplers", "temperature"],
        &["--temp", "1.5", "--sampler-seq", "t"],
        &["--temp", "1.5", "--logit-bias", r#"" cat"+1000"#],
        &["-s", "8", "--temp", "1.5"],
    ] {
        assert_ne!(text(flags), usual, "{flags:?}");
    }
    let penalized = |last_n| text(&["--temp", "1.5", "--repeat-penalty", "100", "--repeat-last-n", last_n]);
    assert_ne!(penalized("1"), penalized("-1"));
}

/// Each parameter of DRY makes another answer at temperature 0, where nothing is left to chance.
#[test]
fn every_flag_of_dry_changes_the_answer() {
    let with = |flags: &[&str]| text(&[&["--temp", "0", "--dry-multiplier", "2"], flags].concat());
    let (greedy, dry) = (text(&["--temp", "0"]), with(&[]));
    assert_ne!(dry, greedy);
    assert_eq!(with(&["--dry-allowed-length", "200"]), greedy);
    assert_eq!(with(&["--dry-penalty-last-n", "3"]), greedy);
    // The prompt ends with such a breaker: for as long as the answer has not repeated three tokens, nothing is lost.
    let broken = with(&["--dry-sequence-breaker", " the"]);
    assert!(broken != dry && broken.starts_with(" cat sat on the mat"), "{broken}");
    // No power of a base of 1, and 0.001 of a logit to lose.
    let weak = |base| text(&["--temp", "0", "--dry-multiplier", "0.001", "--dry-base", base]);
    assert_eq!(weak("1"), greedy);
    assert_ne!(weak("100000"), greedy);
}

#[test]
fn mirostat_learns_as_fast_as_it_is_told() {
    let with = |rate| text(&["--temp", "1.5", "--mirostat", "2", "--mirostat-ent", "0.5", "--mirostat-lr", rate]);
    assert_ne!(with("0"), with("100"));
}

#[test]
fn a_seed_repeats_whatever_draws_from_it_on_any_number_of_threads() {
    for flags in [
        &["--temp", "1.5"][..],
        &["--xtc-probability", "0.5", "--typical", "0.9", "--top-nsigma", "2", "--dry-multiplier", "1"],
        &["--mirostat", "2"],
        &["--dynatemp-range", "0.5"],
    ] {
        let one = text(&[flags, &["-t", "1"]].concat());
        assert_eq!(text(&[flags, &["-t", "2"]].concat()), one, "{flags:?}");
        assert_eq!(text(&[flags, &["-t", "2", "--simd", "scalar"]].concat()), one, "{flags:?}");
    }
}

#[test]
fn all_filters_at_their_strictest_leave_the_likeliest_token() {
    let strict = ["--temp", "1", "--top-k", "1", "--min-p", "1", "--top-p", "0", "--typical", "0"];
    assert_eq!(text(&strict), text(&["--temp", "0"]));
    assert_eq!(text(&["--temp", "0", "-s", "1"]), text(&["--temp", "0", "-s", "2"]), "no seed counts at 0");
}

#[test]
fn a_bias_makes_a_token_come_always_or_never() {
    let greedy = text(&["--temp", "0", "-n", "1"]);
    let always = text(&["--temp", "0", "-n", "3", "-l", r#"" blue"+1000"#]);
    assert_eq!(always, " blue blue blue");
    // As often as the likeliest is banned another one comes.
    let quoted = |text: &str| serde_json::json!(text).to_string();
    let second = text(&["--temp", "0", "-n", "1", "-l", &format!("{}-inf", quoted(&greedy))]);
    let bans = [greedy.clone(), second.clone()].map(|text| format!("{}=false", quoted(&text)));
    let third = text(&["--temp", "0", "-n", "1", "--logit-bias", &bans[0], "--logit-bias", &bans[1]]);
    assert!(greedy != second && second != third && third != greedy, "{greedy:?} {second:?} {third:?}");
}

#[test]
fn values_out_of_range_are_refused_with_the_flags_name() {
    for flag in ["--top-p", "--min-p", "--typical", "--xtc-probability", "--xtc-threshold"] {
        for value in ["-0.1", "1.5", "nan", "inf", ""] {
            refused(&[flag, value], "number from 0 to 1");
        }
    }
    for flag in ["--temp", "--dynatemp-range", "--dynatemp-exp", "--dry-multiplier", "--mirostat-lr", "--mirostat-ent"]
    {
        for value in ["-1", "NaN", "infinity"] {
            refused(&[flag, value], "number of 0 or more");
        }
    }
    for flag in ["--presence-penalty", "--frequency-penalty", "--top-nsigma"] {
        for value in ["nan", "inf", "1e99", "x"] {
            refused(&[flag, value], "finite number");
        }
    }
    refused(&["--repeat-penalty", "0"], "number above 0");
    refused(&["--dry-base", "0.99"], "number of 1 or more");
    refused(&["--dry-allowed-length", "-1"], "a whole number");
    refused(&["--dry-penalty-last-n", "-2"], "whole number of -1 or more");
    refused(&["--repeat-last-n", "-2"], "whole number of -1 or more");
    refused(&["--dry-sequence-breaker", ""], "not empty");
    refused(&["--mirostat", "1"], "version 1");
    refused(&["--mirostat", "3"], "0 or 2");
}

#[test]
fn unknown_stages_and_tokens_are_refused() {
    refused(&["--samplers", "top_k;tfs_z"], "'tfs_z', only penalties, dry, top_n_sigma, top_k");
    refused(&["--samplers", ""], "only penalties");
    refused(&["--sampler-seq", "kz"], "'z', only e (penalties)");
    for value in ["", "15043", "15043+", "x+1", "7+inf", "7-nan", r#""a"#] {
        refused(&["--logit-bias", value], "a token's id, or its text");
    }
    refused(&["--logit-bias", "49152+1"], "the last one is 49151");
    refused(&["--logit-bias", r#"" two words"+1"#], "no single token stands for");
}

#[test]
fn a_flag_that_changes_nothing_is_told_in_one_line_and_the_answer_comes() {
    for (flags, words) in [
        (&["--samplers", "temperature", "--top-k", "1"][..], "--top-k changes nothing: --samplers leaves out top_k"),
        (&["--mirostat", "2", "--top-p", "0.5"], "--top-p changes nothing with --mirostat 2"),
        (&["--xtc-probability", "1", "--xtc-threshold", "0.6"], "--xtc-probability changes nothing with an --xtc-thr"),
        (&["--dry-base", "3"], "--dry-base changes nothing without --dry-multiplier"),
    ] {
        let output = run(&[flags, &["-n", "1"]].concat());
        let said = stderr(&output);
        assert!(output.status.success() && !output.stdout.is_empty(), "{said}");
        assert!(said.starts_with("sayfa: warning: ") && said.contains(words), "{said}");
        assert!(said.lines().count() <= 2, "{said}");
    }
}
