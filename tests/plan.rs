//! `sayfa plan`, and the same arithmetic in `run` and `chat`: what fits, what does not, and what memory is really held.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use sayfa::gguf::Gguf;
use serde_json::Value;

#[path = "support/gguf_writer.rs"]
mod gguf_writer;
#[path = "support/rewrite.rs"]
mod rewrite;

use gguf_writer::{Val, Writer};

fn root(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

fn micro() -> String {
    root("tests/data/micro/F32.gguf").display().to_string()
}

fn real_model() -> String {
    let path = root("models/SmolLM2-135M-Instruct.Q4_1.gguf");
    assert!(path.exists(), "{} is missing: scripts/get_model.sh gets it", path.display());
    path.display().to_string()
}

fn sayfa(args: &[&str]) -> Output {
    let mut command = assert_cmd::Command::new(env!("CARGO_BIN_EXE_sayfa"));
    command.env_remove("SAYFA_MODEL").current_dir(root(".")).args(args).timeout(Duration::from_secs(120));
    command.write_stdin("").output().unwrap()
}

/// The program under `ulimit -v`.
fn sayfa_within(kib: u64, args: &[&str]) -> Output {
    let script = format!("ulimit -v {kib}; exec \"$0\" \"$@\"");
    let mut command = Command::new("sh");
    command.args(["-c", &script, env!("CARGO_BIN_EXE_sayfa")]).args(args).stdin(Stdio::null()).output().unwrap()
}

fn plan(args: &[&str]) -> Output {
    sayfa(&[&["plan"], args].concat())
}

/// The JSON of a plan and whether it ended with 0.
fn planned(args: &[&str]) -> (Value, bool) {
    let output = plan(&[args, &["--json"]].concat());
    let report = serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{}", stderr(&output)));
    (report, output.status.success())
}

fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).expect("standard error is UTF-8")
}

/// Ends with `code` and one sentence on standard error that holds every one of `words`.
fn assert_refused(output: &Output, code: i32, words: &[&str]) {
    let said = stderr(output);
    assert_eq!(output.status.code(), Some(code), "{said}");
    let sentence = said.lines().next().unwrap_or_default();
    for word in words {
        assert!(sentence.contains(word), "no {word:?} in {said}");
    }
}

const LLAMA_2_13B: [&str; 8] = ["--shape", "llama-2-13b", "--weights", "q4_0", "-c", "4000", "--sequences", "8"];

#[test]
fn eight_long_sequences_of_llama_2_13b_fit_a_gpu_of_24_gb_in_int8_and_not_in_f16() {
    // 24 GB are 22.4 GiB; the larger 24 GiB change nothing
    for vram in ["24GB", "24GiB"] {
        let (f16, fits) = planned(&[&LLAMA_2_13B[..], &["--vram", vram]].concat());
        assert!(!fits && f16["fits"] == false);
        assert_eq!(f16["kv_bytes_per_token"], 819_200);
        assert_eq!(f16["kv_payload_bytes"], 8 * 4000 * 819_200u64); // 26.2 GB, 3.28 GB each
        assert_eq!((f16["kv_bytes"].as_u64(), f16["kv_blocks"].as_u64()), (Some(26_214_400_000), Some(2000)));
        // the published file has 7.37 GB
        assert!((7.3e9..7.6e9).contains(&f16["weights_bytes"].as_f64().unwrap()), "{f16}");
        assert_eq!(f16["int8_kv"]["fits"], true);

        let (int8, fits) = planned(&[&LLAMA_2_13B[..], &["--vram", vram, "--kv-type", "int8"]].concat());
        assert!(fits && int8["fits"] == true, "{int8}");
        assert_eq!(
            (int8["kv_bytes_per_token"].as_u64(), int8["kv_bytes"].as_u64()),
            (Some(416_000), Some(13_312_000_000))
        );
        assert_eq!(int8["gpu_layers_that_fit"], 41);
    }
}

#[test]
fn a_plan_that_does_not_fit_says_what_would_and_that_is_true() {
    let base = [&LLAMA_2_13B[..4], &["--vram", "24GB", "--ram", "32GiB"]].concat();
    let fits = |args: &[&str]| planned(&[&base[..], args].concat()).1;
    let output = plan(&[&base[..], &["-c", "4000", "--sequences", "8"]].concat());
    assert_refused(&output, 1, &["does not fit", "GPU", "GiB", "--vram", "--kv-type int8", "layers on the GPU"]);
    let said = stderr(&output);
    let after = |flag: &str| {
        let rest = &said[said.find(flag).unwrap_or_else(|| panic!("no {flag} in {said}")) + flag.len()..];
        rest.split([',', ' ']).next().unwrap().parse::<usize>().unwrap()
    };
    let (context, sequences) = (after("-c "), after("--sequences "));
    assert!(fits(&["--sequences", "8", "-c", &context.to_string()]), "{said}");
    assert!(!fits(&["--sequences", "8", "-c", &(context + 16).to_string()]), "{said}");
    assert!(fits(&["--sequences", &sequences.to_string(), "-c", "4000"]), "{said}");
    assert!(!fits(&["--sequences", &(sequences + 1).to_string(), "-c", "4000"]), "{said}");
}

#[test]
fn the_last_layers_that_fit_are_counted_and_the_host_must_have_room_for_the_rest() {
    let layers =
        |ram| planned(&["--shape", "mixtral-8x7b", "--vram", "24GiB", "--ram", ram]).0["gpu_layers_that_fit"].clone();
    let n = layers("32GiB").as_u64().unwrap();
    assert!((20..33).contains(&n), "{n} of 33");
    assert!(layers("2GiB").is_null());
    // 70 billion parameters with the whole trained context need a shorter one as well
    let output = plan(&["--shape", "llama-3.1-70b", "--vram", "24GiB", "--ram", "32GiB"]);
    assert_refused(&output, 1, &["-c ", " and ", "of 81 layers on the GPU"]);
    let output = plan(&["--shape", "llama-3.1-70b", "--vram", "1GiB", "--ram", "1GiB"]);
    assert_refused(&output, 1, &["more memory is needed"]);
}

#[test]
fn a_file_and_its_shape_give_the_same_plan() {
    let (file, fits) = planned(&["-m", &real_model(), "--ram", "8GiB"]);
    let (shape, _) = planned(&["--shape", "smollm2-135m", "--weights", "q4_1", "--ram", "8GiB"]);
    assert!(fits);
    for key in ["weights_bytes", "kv_bytes_per_token", "block_stride_bytes", "trained_tokens", "devices"] {
        assert_eq!(file[key], shape[key], "{key}");
    }
    assert_eq!((file["block_bytes"].as_u64(), file["block_stride_bytes"].as_u64()), (Some(368_640), Some(368_640)));
    let (int8, _) = planned(&["-m", &real_model(), "--kv-type", "int8"]);
    assert_eq!((int8["block_bytes"].as_u64(), int8["block_stride_bytes"].as_u64()), (Some(190_080), Some(192_512)));
    let (mixed, _) = planned(&["-m", &real_model(), "--kv-type-v", "int8"]);
    assert_eq!(mixed["kv_bytes_per_token"], (23_040 + 11_880) / 2);
}

#[test]
fn blocks_are_counted_whole_and_the_cache_takes_what_is_left_or_what_was_asked() {
    let shape = ["--shape", "smollm2-135m", "--ram", "1GiB"];
    let with = |args: &[&str]| planned(&[&shape[..], args].concat());
    let (report, _) = with(&["-c", "17", "--sequences", "3"]);
    assert_eq!((report["kv_blocks"].as_u64(), report["cache_tokens"].as_u64()), (Some(6), Some(17)));
    let (report, fits) = with(&["-c", "30000"]);
    let cached = report["cache_tokens"].as_u64().unwrap();
    assert!(fits && cached > 0 && cached < 30_000, "{report}");
    let (report, fits) = with(&["-c", "30000", "--cache-tokens", "30000"]);
    assert!(!fits && report["cache_tokens"] == 30_000, "{report}");
    assert_refused(&plan(&[&shape[..], &["-c", "30000", "--cache-tokens", "30000"]].concat()), 1, &["--cache-tokens "]);
}

#[test]
fn reports_fit_80_columns_and_have_no_escape_codes() {
    let real = real_model();
    let trace = root("tests/data/trace.txt").display().to_string();
    for args in [
        &["-m", &real][..],
        &["--shape", "llama-3.1-70b", "--vram", "24GiB"],
        &["--shape", "llama-3.1-70b", "--vram", "24GiB", "--ram", "32GiB"],
        &["--shape", "mixtral-8x7b", "--vram", "24GB", "--kv-type-v", "int8", "--cache-tokens", "4096"],
        &["-m", &real, "-c", "2147483648", "--sequences", "65536", "--kv-type-k", "int8"],
        &["--shape", "llama-2-7b", "--vram", "12GiB", "--simulate", "--trace", &trace],
    ] {
        let output = plan(args);
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(text.lines().count() > 8 && !text.contains('\x1b'), "{text}");
        let long = text.lines().find(|line| line.chars().count() > 80);
        assert_eq!(long, None, "{args:?}");
    }
}

#[test]
fn what_makes_no_sense_is_one_sentence() {
    for (args, words) in [
        (&["--vram", "24Gib"][..], &["--vram", "24Gib", "24GiB"][..]),
        (&["--vram", "0"], &["--vram", "size"]),
        (&["--ram", "-1"], &["--ram", "size"]),
        (&["--ram", "24"], &["--ram", "unit"]),
        (&["--shape", "gpt-5"], &["--shape", "llama-2-13b", "yi-34b"]),
        (&["--shape", "llama-2-7b", "--weights", "q4"], &["--weights", "q4_k_m", "iq4_xs"]),
        (&["--weights", "q4_0"], &["required"]),
        (&["--sequences", "0"], &["--sequences"]),
        (&["-c", "-1"], &["--ctx-size"]),
        (&["--shape", "llama-2-7b", "-m", "x"], &["--shape", "--model"]),
        (&["--simulate"], &["required"]),
    ] {
        let output = plan(args);
        assert!(output.stdout.is_empty());
        let said = stderr(&output);
        assert_eq!(output.status.code(), Some(2), "{said}");
        assert!(words.iter().all(|word| said.contains(word)), "{args:?}: {said}");
    }
    let vocabulary = root("models/tests/vocab/ggml-vocab-llama-bpe.gguf");
    assert!(vocabulary.exists(), "{} is missing: scripts/get_model.sh --tests gets it", vocabulary.display());
    assert_refused(&plan(&["-m", &vocabulary.display().to_string()]), 1, &["llama-bpe", "no weights"]);
}

/// A file of 90 GB, nearly all of it a hole, is planned from its header at once.
#[test]
fn only_the_header_of_a_file_is_read() {
    let (dim, hidden, n_layers) = (4096u64, 114_688u64, 32);
    let origin = Gguf::open(Path::new(&micro())).unwrap();
    let mut writer: Writer = rewrite::rewrite(&origin);
    let vocab = origin.tensor("token_embd.weight").unwrap().dims[1];
    for (key, value) in
        [("block_count", n_layers), ("embedding_length", dim as u32), ("feed_forward_length", hidden as u32)]
    {
        writer = writer.set(&format!("llama.{key}"), Val::u32(value));
    }
    for (key, value) in [("head_count", 32), ("head_count_kv", 8), ("key_length", 128), ("value_length", 128)] {
        writer = writer.set(&format!("llama.attention.{key}"), Val::u32(value));
    }
    writer = writer.set("llama.rope.dimension_count", Val::u32(128));
    writer.tensors.clear();
    let mut end = 0;
    let mut add = |name: String, dims: &[u64], type_id: u32, bytes: u64| {
        writer = std::mem::replace(&mut writer, Writer::new()).tensor(name, dims, type_id, &[]);
        writer.tensors.last_mut().unwrap().offset = Some(end);
        end += bytes;
    };
    add("token_embd.weight".into(), &[dim, vocab], 1, 2 * dim * vocab);
    add("output.weight".into(), &[dim, vocab], 1, 2 * dim * vocab);
    add("output_norm.weight".into(), &[dim], 0, 4 * dim);
    for layer in 0..n_layers {
        let mut matrix = |part: &str, rows: u64, cols: u64| {
            add(format!("blk.{layer}.{part}.weight"), &[cols, rows], 1, 2 * rows * cols);
        };
        matrix("attn_q", dim, dim);
        matrix("attn_k", 1024, dim);
        matrix("attn_v", 1024, dim);
        matrix("attn_output", dim, dim);
        matrix("ffn_gate", hidden, dim);
        matrix("ffn_up", hidden, dim);
        matrix("ffn_down", dim, hidden);
    }
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("hole.gguf");
    let header = writer.build();
    fs::write(&path, &header).unwrap();
    fs::File::options().write(true).open(&path).unwrap().set_len(header.len() as u64 + end).unwrap();
    let start = Instant::now();
    let (report, _) = planned(&["-m", &path.display().to_string(), "-c", "4096", "--ram", "1GiB"]);
    let took = start.elapsed();
    assert_eq!(report["weights_bytes"], end);
    assert!(end > 90_000_000_000 && report["kv_bytes_per_token"] == 131_072, "{report}");
    // a hundredth of this is usual; reading the file would take far longer
    assert!(took < Duration::from_secs(5), "{took:?}");
}

#[test]
fn weights_that_memory_cannot_hold_are_warned_of_and_no_reason_to_refuse() {
    let output = plan(&["--shape", "llama-2-7b", "--weights", "q4_0", "--ram", "4GiB"]);
    assert!(output.status.success(), "{}", stderr(&output));
    assert!(stderr(&output).starts_with("sayfa: warning:") && stderr(&output).contains("read the disk"));
    let output = plan(&["--shape", "llama-2-7b", "--weights", "q4_0", "--ram", "8GiB"]);
    assert!(output.status.success() && output.stderr.is_empty(), "{}", stderr(&output));
}

// ---- run and chat plan first

#[test]
fn run_and_chat_refuse_a_context_that_cannot_fit_before_they_load() {
    let model = real_model();
    for command in [&["run", "-p", "hi"][..], &["chat"]] {
        let output = sayfa(&[command, &["-m", &model, "-c", "50000000"]].concat());
        assert_refused(&output, 1, &["-c 50000000", "MiB", "KV cache", "at most -c", "int8", "--force"]);
        assert!(output.stdout.is_empty() && stderr(&output).lines().count() == 1, "{}", stderr(&output));
    }
    // what it advises is accepted
    let output = sayfa_within(2_000_000, &["run", "-m", &model, "-p", "hi", "-n", "1", "-c", "1000000"]);
    assert_refused(&output, 1, &["address space", "at most -c"]);
    let said = stderr(&output);
    let advised = said.split("at most -c ").nth(1).unwrap().split(' ').next().unwrap();
    let output = sayfa_within(2_000_000, &["run", "-m", &model, "-p", "hi", "-n", "1", "-c", advised]);
    assert!(output.status.success(), "{}", stderr(&output));
}

#[test]
fn a_model_trained_for_a_million_tokens_runs_within_4_gb_of_addresses() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("long.gguf");
    let mut bytes = fs::read(real_model()).unwrap();
    let key = "llama.context_length";
    let at = bytes.windows(key.len()).position(|window| window == key.as_bytes()).unwrap() + key.len();
    assert_eq!(bytes[at..at + 4], 4u32.to_le_bytes(), "a u32");
    bytes[at + 4..at + 8].copy_from_slice(&1_048_576u32.to_le_bytes());
    fs::write(&path, bytes).unwrap();
    let path = path.display().to_string();
    let args = ["run", "-v", "-m", &path, "-p", "What is 2+2?", "--temp", "0", "-n", "12"];
    let output = sayfa_within(4_000_000, &args);
    let said = stderr(&output);
    assert!(output.status.success(), "{said}");
    assert!(said.contains("what fits") && said.contains("1048576") && said.contains("address space"), "{said}");
    assert!(String::from_utf8_lossy(&output.stdout).contains('4'));
    let output = sayfa_within(4_000_000, &[&args[..], &["-c", "0"]].concat());
    assert_refused(&output, 1, &["-c 0", "1048576 tokens", "--force"]);
}

/// Memory follows tokens: a context of 131072 tokens with about 100 of them in use takes less than 4 MB of KV.
#[cfg(target_os = "linux")]
#[test]
fn a_long_context_holds_only_the_pages_in_use() {
    let home = tempfile::tempdir().unwrap();
    let mut child = Command::new(env!("CARGO_BIN_EXE_sayfa"))
        .env("HOME", home.path())
        .args(["chat", "-m", &real_model(), "-c", "131072", "--force", "--temp", "0", "-n", "8"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    writeln!(stdin, "{}", "Please say hello to the kind people here. ".repeat(7)).unwrap();
    let mut answer = String::new();
    BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut answer).unwrap();
    let smaps = fs::read_to_string(format!("/proc/{}/smaps", child.id())).unwrap();
    drop(stdin);
    assert!(child.wait().unwrap().success() && !answer.trim().is_empty());

    let kib = |line: &str| line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap();
    let sizes = smaps.lines().filter(|line| line.starts_with("Size:")).map(kib);
    let resident = smaps.lines().filter(|line| line.starts_with("Rss:")).map(kib);
    let (pool, held) = sizes.zip(resident).max().unwrap();
    assert!(pool >= 131_072 * 23_040 / 1024, "the largest map is the pool: {pool} KiB");
    assert!((5 * 360..4_000_000 / 1024).contains(&held), "{held} KiB of KV for about 100 tokens");
}

// ---- simulation

fn simulated(trace: &str, args: &[&str]) -> Output {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("trace.txt");
    fs::write(&path, trace).unwrap();
    plan(&[&["--simulate", "--trace", &path.display().to_string()], args].concat())
}

#[test]
fn the_trace_that_ships_shows_what_pages_are_for() {
    let trace = fs::read_to_string(root("tests/data/trace.txt")).unwrap();
    let output = simulated(&trace, &["--shape", "llama-2-7b", "--weights", "q4_0", "--vram", "12GiB", "--json"]);
    let report: Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{}", stderr(&output)));
    let number = |policy: &str, key: &str| report[policy][key].as_f64().unwrap();
    assert!(report["requests"].as_u64().unwrap() >= 60);
    assert!(number("reserved", "wasted") > 0.6 && number("paged", "wasted") < 0.04, "{report}");
    assert!(number("paged", "mean_sequences") > 2.0 * number("reserved", "mean_sequences"), "{report}");
    assert!(number("paged", "steps") < number("reserved", "steps"));
    // as many contexts as the budget holds
    let contexts = report["kv_budget_tokens"].as_u64().unwrap() / 4096;
    assert_eq!(report["reserved"]["most_sequences"].as_u64(), Some(contexts));
}

#[test]
fn a_small_trace_comes_out_as_by_hand() {
    // 23,040 bytes a token; enough for all three at once
    let args = ["--shape", "smollm2-135m", "--ram", "1GiB", "-c", "64", "--json"];
    let output = simulated("# three\n20 2\n20 2 # two\n\n20 2\n", &args);
    let report: Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{}", stderr(&output)));
    let wasted = |policy: &str| report[policy]["wasted"].as_f64().unwrap();
    assert_eq!((wasted("reserved"), wasted("paged")), ((43.0 + 42.0) / 128.0, (11.0 + 10.0) / 64.0));
    assert_eq!((report["paged"]["steps"].as_u64(), report["paged"]["most_sequences"].as_u64()), (Some(2), Some(3)));
}

#[test]
fn traces_that_cannot_run_name_the_line_and_the_numbers() {
    let shape = ["--shape", "smollm2-135m", "--ram", "1GiB"];
    assert_refused(&simulated("5 6\n7 x\n", &shape), 1, &["trace.txt", "line 2", "\"7 x\""]);
    assert_refused(&simulated("5 6\n\n8000 600\n", &shape), 1, &["line 3", "8000", "600", "8192", "-c"]);
    assert_refused(&simulated("# nothing\n", &shape), 1, &["no request"]);
    assert_refused(&simulated("8000 100\n", &["--shape", "smollm2-135m", "--ram", "300MiB"]), 1, &["--ram", "8100"]);
    assert_refused(&plan(&["--simulate", "--trace", "/nonexistent"]), 1, &["--trace /nonexistent"]);
}
