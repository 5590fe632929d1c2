//! `sayfa bench` through the real binary: reports that say where they come from, stages, comparisons, plots, shapes.
//! What is measured depends on the machine; what is counted does not.

use std::fs;
use std::path::Path;
use std::process::Output;
use std::time::Duration;

use serde_json::{Value, json};

fn micro(name: &str) -> String {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/data/micro/{name}.gguf")).display().to_string()
}

fn bench(args: &[&str]) -> Output {
    let mut command = assert_cmd::Command::new(env!("CARGO_BIN_EXE_sayfa"));
    command.args(["bench", "-t", "1", "-r", "2"]).args(args).timeout(Duration::from_secs(120)).output().unwrap()
}

fn text(output: &Output) -> String {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout.clone()).unwrap()
}

fn report(args: &[&str]) -> Value {
    serde_json::from_str(&text(&bench(&[args, &["--json"]].concat()))).expect("one JSON object")
}

fn assert_refused(args: &[&str], code: i32, words: &[&str]) {
    let output = bench(args);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(code) && output.stdout.is_empty(), "{args:?}: {said}");
    assert!(said.lines().count() == 1 && words.iter().all(|word| said.contains(word)), "{args:?}: {said}");
}

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or_else(|| panic!("{value} is no number"))
}

fn tests(report: &Value) -> &[Value] {
    report["tests"].as_array().expect("a list")
}

fn positive(value: &Value) -> bool {
    number(value).is_finite() && number(value) > 0.0
}

/// Multiplications and additions of a decoded token of a one-layer model, `seen` tokens in sight of it on average.
fn ops_per_token(model: &Value, seen: f64) -> f64 {
    let size = |key: &str| number(&model[key]);
    let (dim, kv_dim) = (size("dim"), size("kv_heads") * size("head_dim"));
    let matrices = 2.0 * dim * dim + 2.0 * kv_dim * dim + 3.0 * dim * size("hidden_dim") + size("vocab") * dim;
    assert_eq!(size("layers"), 1.0);
    2.0 * matrices + 4.0 * size("heads") * size("head_dim") * seen
}

#[test]
fn a_report_says_where_it_comes_from_and_counts_what_there_is_to_do() {
    let report = report(&["-m", &micro("Q4_1"), "-p", "8", "-n", "4", "-d", "0,10", "--kv-type", "f32"]);
    assert_eq!(report["sayfa"], env!("CARGO_PKG_VERSION"));
    let machine = &report["machine"];
    assert_eq!((&machine["threads"], &machine["os"]), (&json!(1), &json!(std::env::consts::OS)));
    assert!(["scalar", "avx2", "avx512", "neon"].iter().any(|simd| machine["simd"] == *simd), "{machine}");
    assert!(machine["cpu"].as_str().is_some_and(|cpu| !cpu.is_empty()));
    let model = &report["model"];
    let shape = ["layers", "dim", "hidden_dim", "heads", "kv_heads", "head_dim", "vocab"].map(|key| &model[key]);
    assert_eq!((&model["name"], &model["activations"]), (&json!("Q4_1.gguf"), &json!("int8")));
    assert_eq!(shape, [1, 256, 256, 4, 2, 64, 320]);
    for limit in ["read_bytes_per_second", "read_buffer_bytes", "int8_ops_per_second", "float_ops_per_second"] {
        assert!(positive(&report["ceilings"][limit]), "{limit}");
    }
    let names: Vec<_> = tests(&report).iter().map(|test| (test["name"].as_str().unwrap(), &test["depth"])).collect();
    assert_eq!(names, [("prefill", &json!(0)), ("decode", &json!(0)), ("prefill", &json!(10)), ("decode", &json!(10))]);
    for test in tests(&report) {
        assert!(positive(&test["tokens_per_second"]) && positive(&test["limit"]["share"]), "{test}");
        assert!(["memory", "arithmetic"].iter().any(|limit| test["limit"]["name"] == *limit), "{test}");
        assert_eq!(test["runs_tokens_per_second"].as_array().unwrap().len(), 2);
        assert_eq!(test["plain_read_bytes_per_second"].is_null(), test["name"] == "prefill");
        assert_eq!(test["launches_per_token"], 0.0);
        let most = number(&test["tokens_per_second"]) / number(&test["limit"]["share"]);
        assert!((number(&test["most_tokens_per_second"]) / most - 1.0).abs() < 1e-9, "{test}");
        assert!(test.get("stages").is_none());
    }
    // four tokens at depth 10 see 11 to 14; K and V of two heads of 64 in f32 take 1024 bytes a token
    let decode = &tests(&report)[3];
    assert_eq!(number(&decode["ops_per_token"]), ops_per_token(model, 12.5));
    let embedding_row = number(&decode["bytes_per_token"]) - number(&model["weights_bytes_per_token"]) - 12.5 * 1024.0;
    assert!(embedding_row > 0.0 && embedding_row <= 1024.0, "{embedding_row}");
}

#[test]
fn sequences_that_decode_together_share_the_weights() {
    let report = report(&["-m", &micro("Q8_0"), "-p", "0", "-n", "3", "-d", "5", "--sequences", "1,2,4"]);
    let (model, tests) = (&report["model"], tests(&report));
    let weights = number(&model["weights_bytes_per_token"]);
    assert_eq!(tests.iter().map(|test| &test["sequences"]).collect::<Vec<_>>(), [1, 2, 4]);
    for (test, sequences) in tests.iter().zip([1.0, 2.0, 4.0]) {
        assert_eq!((&test["tokens"], &test["name"]), (&json!(3), &json!("decode")));
        assert_eq!(number(&test["ops_per_token"]), ops_per_token(model, 7.0));
        let rest = number(&test["bytes_per_token"]) - weights / sequences;
        assert!(rest > 0.0 && rest < 7.0 * 512.0 + 1024.0, "{test}");
    }
    let table = text(&bench(&["-m", &micro("Q8_0"), "-p", "0", "-n", "2", "--sequences", "4"]));
    assert!(table.lines().any(|line| line.starts_with("| decode | f16 | 4 | 0 | 2 |")), "{table}");
    assert_refused(&["-m", &micro("Q8_0"), "--sequences", "4", "-b", "2"], 2, &["--sequences 4", "-b 2"]);
    assert_refused(&["-m", &micro("Q8_0"), "--sequences", "33"], 2, &["--sequences", "33"]);
    assert_refused(&["-m", &micro("Q8_0"), "-d", "600"], 1, &["1112", "512", "-c"]);
}

#[test]
fn stages_share_out_the_whole_step() {
    let args = ["-m", &micro("Q6_K"), "-p", "4", "-n", "3", "-d", "20", "--stages"];
    let report = report(&args);
    for test in tests(&report) {
        let stages = test["stages"].as_array().unwrap();
        let names: Vec<_> = stages.iter().map(|stage| stage["stage"].as_str().unwrap()).collect();
        let whole = ["embed", "norm", "attn_qkv", "rope", "store", "attention", "attn_output"];
        assert_eq!(names[..7], whole);
        assert_eq!(names[7..], ["ffn_gate_up", "silu", "ffn_down", "residual", "output"]);
        let sum: f64 = stages.iter().map(|stage| number(&stage["share"])).sum();
        assert!((sum - 1.0).abs() < 1e-9, "{sum}");
        assert!(stages.iter().all(|stage| positive(&stage["step_us"])));
        // what the stages do comes to what the test says it does
        let step = |speed: &str| -> f64 {
            stages.iter().map(|stage| number(&stage[speed]) * number(&stage["step_us"]) / 1e6).sum()
        };
        let tokens_per_step = if test["name"] == "prefill" { 4.0 } else { 1.0 };
        for (speed, per_token) in [("bytes_per_second", "bytes_per_token"), ("ops_per_second", "ops_per_token")] {
            let (sum, whole) = (step(speed), number(&test[per_token]) * tokens_per_step);
            assert!((sum / whole - 1.0).abs() < 1e-9, "{speed}: {sum} of {whole}");
        }
        let with_limit = stages.iter().filter(|stage| !stage["limit"].is_null()).count();
        assert_eq!(with_limit, 7, "embedding, five products and attention");
    }
    let table = text(&bench(&args));
    assert_eq!(table.lines().filter(|line| line.starts_with("| ffn_down | ")).count(), 2, "{table}");
    assert!(table.contains("decode of 3 tokens at depth 20, f16 KV: "), "{table}");
}

#[test]
fn experts_count_as_many_as_a_token_uses() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/variants/experts.gguf");
    let report = report(&["-m", path.to_str().unwrap(), "-p", "0", "-n", "2", "--stages"]);
    let stages = tests(&report)[0]["stages"].as_array().unwrap();
    let stage = |name: &str| stages.iter().find(|stage| stage["stage"] == name).unwrap_or_else(|| panic!("{stages:?}"));
    let ops = |name: &str| number(&stage(name)["ops_per_second"]) * number(&stage(name)["step_us"]) / 1e6;
    let size = |key: &str| number(&report["model"][key]);
    // two experts a token
    let down = 2.0 * 2.0 * size("dim") * size("hidden_dim") * size("layers");
    assert!((ops("ffn_down") / down - 1.0).abs() < 1e-9, "{} of {down}", ops("ffn_down"));
    assert!((ops("ffn_gate_up") / down - 2.0).abs() < 1e-9);
    assert!(ops("ffn_router") > 0.0);
}

/// A report of what `report` measured, all tests at `tokens_per_second`.
fn doctored(mut report: Value, tokens_per_second: f64) -> Value {
    let tests = report["tests"].as_array_mut().unwrap();
    tests.iter_mut().for_each(|test| test["tokens_per_second"] = json!(tokens_per_second));
    report
}

#[test]
fn an_earlier_report_is_compared_test_by_test() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("earlier.json");
    let path = file.to_str().unwrap();
    let model = micro("Q4_0");
    let measured = report(&["-m", &model, "-p", "8,16", "-n", "2"]);
    fs::write(&file, doctored(measured, 0.5).to_string()).unwrap();

    let now = report(&["-m", &model, "-p", "16", "-n", "2,3", "--compare", path]);
    let comparison = &now["comparison"];
    let pairs = comparison["tests"].as_array().unwrap();
    let keys: Vec<_> = pairs.iter().map(|pair| (pair["name"].as_str().unwrap(), &pair["tokens"])).collect();
    assert_eq!(keys, [("prefill", &json!(16)), ("decode", &json!(2))]);
    for (pair, test) in pairs.iter().zip(tests(&now)) {
        assert_eq!(pair["earlier_tokens_per_second"], 0.5);
        let ratio = number(&test["tokens_per_second"]) / 0.5;
        assert!((number(&pair["ratio"]) / ratio - 1.0).abs() < 1e-9, "{pair}");
    }
    let only = |side: &str| comparison[side].as_array().unwrap().iter().map(|key| key["tokens"].clone()).collect();
    let (earlier, later): (Vec<Value>, Vec<Value>) = (only("only_earlier"), only("only_now"));
    assert_eq!((earlier, later), (vec![json!(8)], vec![json!(3)]));
    assert_eq!(comparison["differences"], json!([]));

    // a file that holds a comparison is a report as well
    fs::write(&file, doctored(now, 1e12).to_string()).unwrap();
    let table = text(&bench(&["-m", &micro("Q4_1"), "-p", "16", "-n", "7", "--compare", path]));
    assert!(table.contains("- the model: Q4_0.gguf then, Q4_1.gguf now"), "{table}");
    let row =
        |start: &str| table.lines().rev().find(|line| line.starts_with(start)).unwrap_or_else(|| panic!("{table}"));
    assert!(row("| prefill | f16 | 1 | 0 | 16 | 1000000000000 | ").ends_with(" | 0.00 |"));
    assert!(row("| decode | f16 | 1 | 0 | 2 |").contains("measured then | missing"));
    assert!(row("| decode | f16 | 1 | 0 | 7 |").contains("missing | measured now"));
}

#[test]
fn files_that_are_no_reports_are_refused_before_anything_is_measured() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("other.json");
    let path = file.to_str().unwrap();
    let args = ["-m", &micro("Q4_0"), "-p", "1", "--compare", path];
    assert_refused(&args, 1, &["--compare", "other.json", "No such file"]);
    let test = json!({"name": "decode", "kv_type": "f16", "sequences": 1, "depth": 0, "tokens": 1});
    let with_speed = |speed: f64| {
        let mut test = test.clone();
        test["tokens_per_second"] = json!(speed);
        let machine = json!({"cpu": "x", "threads": 1, "simd": "scalar"});
        let model =
            json!({"name": "a|b\u{1b}[31m", "activations": "int8", "weights_bytes_per_token": 1, "batch_tokens": 7});
        json!({"sayfa": "0", "machine": machine, "model": model, "tests": [test]})
    };
    let mut none = with_speed(1.0);
    none["tests"] = json!([]);
    let foreign = ["", "{", "[]", "{\"tests\": []}", "\u{7f}ELF", "{\"tests\": [{\"name\": \"decode\"}]}"];
    let foreign =
        foreign.map(str::to_string).into_iter().chain([with_speed(0.0), with_speed(-1.0), none].map(|v| v.to_string()));
    for content in foreign {
        fs::write(&file, &content).unwrap();
        assert_refused(&args, 1, &["--compare", "other.json", "no report of `sayfa bench --json`"]);
    }
    fs::write(&file, b"\xff\xfe").unwrap();
    assert_refused(&args, 1, &["--compare", "other.json"]);
    fs::write(&file, with_speed(1.0).to_string()).unwrap();
    let table = text(&bench(&args));
    assert!(table.contains("- the model: a\u{fffd}b\u{fffd}[31m then, Q4_0.gguf now"), "{table}");
    assert!(table.contains("- -b: 7 then, 256 now") && table.contains("- bytes of weights a token: 1 then"), "{table}");
    #[cfg(unix)]
    for endless in ["/dev/zero", "."] {
        let args = ["-m", &micro("Q4_0"), "-p", "1", "--compare", endless];
        assert_refused(&args, 1, &["--compare", "no report of `sayfa bench --json`"]);
    }
}

#[test]
fn the_instructions_of_the_environment_are_those_of_the_report() {
    let args = ["bench", "-t", "1", "-r", "1", "-m", &micro("Q4_0"), "-p", "2", "-n", "0", "--json"];
    let mut command = assert_cmd::Command::new(env!("CARGO_BIN_EXE_sayfa"));
    let output = command.env("SAYFA_SIMD", "scalar").args(args).timeout(Duration::from_secs(120)).output().unwrap();
    let report: Value = serde_json::from_str(&text(&output)).expect("one JSON object");
    assert_eq!(report["machine"]["simd"], "scalar");
}

#[test]
fn a_plot_has_a_line_for_each_kv_type_in_a_panel_for_each_kind() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("speed.svg");
    let path = file.to_str().unwrap();
    let args = ["-m", &micro("Q4_0"), "-p", "4", "-n", "2", "-d", "0,8,16", "--kv-types", "f16,int8", "--plot", path];
    text(&bench(&args));
    let svg = fs::read_to_string(&file).unwrap();
    let document = roxmltree::Document::parse(&svg).expect("well-formed XML");
    assert_eq!(document.root_element().tag_name().name(), "svg");
    let points = |node: roxmltree::Node| node.attribute("points").unwrap_or_default().split_whitespace().count();
    let lines = document.descendants().filter(|node| node.has_tag_name("polyline"));
    let lines = lines.filter(|node| node.attribute("stroke-width") == Some("2") && points(*node) == 3);
    assert_eq!(lines.count(), 4, "prefill and decode, f16 and int8, three depths each");
    let texts: Vec<&str> = document
        .descendants()
        .filter(|node| node.has_tag_name("text"))
        .filter_map(|node| node.text())
        .map(str::trim)
        .collect();
    let count = |text: &str| texts.iter().filter(|found| **found == text).count();
    assert_eq!(
        (count("f16 KV"), count("int8 KV"), count("Q4_0.gguf: prefill"), count("Q4_0.gguf: decode")),
        (2, 2, 1, 1)
    );

    assert_refused(&["-m", &micro("Q4_0"), "-d", "8,8", "--plot", path], 2, &["--plot", "two depths"]);
    let nowhere = folder.path().join("none/speed.svg");
    let nowhere = nowhere.to_str().unwrap();
    assert_refused(&["-m", &micro("Q4_0"), "-d", "0,8", "--plot", nowhere], 1, &["--plot", "none/speed.svg"]);
}

#[test]
fn a_published_shape_is_measured_without_a_file() {
    let report = report(&["--shape", "SmolLM2-135M", "--weights", "q4_0", "-p", "2", "-n", "1", "-c", "64"]);
    let model = &report["model"];
    assert_eq!(model["name"], "smollm2-135m in q4_0");
    assert_eq!((&model["layers"], &model["vocab"], &model["head_dim"]), (&json!(30), &json!(49152), &json!(64)));
    // 30 layers of 3,538,944 weights in 4.5 bits; the tied head has no K blocks in rows of 576 and falls back to Q8_0
    let layers = 30.0 * 3_538_944.0 * 4.5 / 8.0;
    assert_eq!(number(&model["weights_bytes_per_token"]), layers + 49152.0 * 576.0 * 8.5 / 8.0);
    assert!(tests(&report).len() == 2 && tests(&report).iter().all(|test| positive(&test["tokens_per_second"])));

    assert_refused(&["--shape", "none"], 2, &["--shape", "llama-3.2-1b"]);
    assert_refused(&["--shape", "llama-3-8b", "--weights", "q9"], 2, &["--weights", "q4_k_m"]);
    assert_refused(&["--shape", "llama-3-8b", "-m", "x"], 2, &["--shape"]);
    assert_refused(&["--shape", "llama-3-8b", "--mlock"], 2, &["--shape", "--mlock"]);
    assert_refused(&["--weights", "q8_0"], 2, &["--shape"]);
    let mixed = bench(&["--shape", "smollm2-135m", "--weights", "q4_k", "-p", "1", "-n", "0", "-c", "64"]);
    assert!(String::from_utf8_lossy(&mixed.stderr).contains("rows of 576 elements are no whole blocks of 256"));
    // as bf16 it takes 132 GiB
    let limited = bench_with_little_memory(&["--shape", "llama-3-70b", "--weights", "bf16"]);
    let said = String::from_utf8_lossy(&limited.stderr);
    assert!(limited.status.code() == Some(1) && said.lines().count() == 1, "{said}");
    assert!(said.contains("131.") && said.contains("--weights") && said.contains("ulimit"), "{said}");
}

/// In an address space of 4 GB, so that the answer is the same on a machine with more memory than that.
fn bench_with_little_memory(args: &[&str]) -> Output {
    let script = format!("ulimit -v 4000000; exec \"$0\" bench -t 1 {}", args.join(" "));
    std::process::Command::new("bash").args(["-c", &script, env!("CARGO_BIN_EXE_sayfa")]).output().unwrap()
}
