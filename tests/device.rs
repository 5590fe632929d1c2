//! Where the program computes: no driver, one without a GPU, a too old one, too little memory, several GPUs, and the flags
//! --device and --gpu-layers (-ngl). The GPU is the stand-in driver's (`tests/cuda_driver`), in the program's own process.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Duration;

use serde_json::Value;

#[allow(dead_code)] // each test file uses a part of it
#[path = "support/cuda_driver.rs"]
mod cuda_driver;
#[allow(dead_code)]
#[path = "support/models.rs"]
mod models;

use models::{Setting, data, default_model};
use sayfa::backend::{self, Gpu};
use sayfa::engine::{Engine, OnFull, Options};
use sayfa::kv::layout::KvType;

fn micro() -> String {
    data("micro/Q4_0.gguf").display().to_string()
}

/// The program with these variables, which settle what the stand-in is like; `None`: no driver at all.
fn sayfa(driver: Option<&[(&str, &str)]>, args: &[&str]) -> Output {
    let mut command = assert_cmd::Command::new(env!("CARGO_BIN_EXE_sayfa"));
    command.env_remove("SAYFA_MODEL").current_dir(env!("CARGO_MANIFEST_DIR"));
    match driver {
        Some(variables) => {
            command.env("LD_LIBRARY_PATH", cuda_driver::library_dir());
            command.envs(variables.iter().map(|(name, value)| (format!("SAYFA_CUDA_{name}"), *value)));
        }
        None => {
            command.env("LD_LIBRARY_PATH", no_driver());
        }
    }
    command.args(args).timeout(Duration::from_secs(120)).write_stdin("").output().unwrap()
}

/// A folder that hides the driver of the machine, should it have one: empty files under its names, which do not load.
fn no_driver() -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("no_driver");
    fs::create_dir_all(&folder).unwrap();
    for ending in ["", ".1", ".9", ".10", ".11", ".12", ".13"] {
        fs::write(folder.join(format!("libcuda.so{ending}")), "").unwrap();
    }
    folder
}

fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).expect("standard error is UTF-8")
}

/// Answers, and says nothing but what `words` stand for: one warning with all of them, or nothing at all.
fn assert_works(output: &Output, words: &[&str]) {
    let said = stderr(output);
    assert!(output.status.success() && !output.stdout.is_empty(), "{said}");
    assert_eq!(said.lines().count(), usize::from(!words.is_empty()), "{said}");
    assert!(words.iter().all(|word| said.contains(word)), "no {words:?} in {said}");
    assert!(words.is_empty() || said.starts_with("sayfa: warning: "), "{said}");
}

/// Ends with `code` and one sentence that holds all of `words`.
fn assert_refused(output: &Output, code: i32, words: &[&str]) {
    let said = stderr(output);
    assert!(output.status.code() == Some(code) && output.stdout.is_empty(), "{said}");
    assert_eq!(said.lines().count(), 1, "{said}");
    assert!(words.iter().all(|word| said.contains(word)), "no {words:?} in {said}");
}

/// A text of a few tokens through the micro model.
fn score(driver: Option<&[(&str, &str)]>, flags: &[&str]) -> Output {
    sayfa(driver, &[&["perplexity", "-m", &micro(), "-p", "some words"], flags].concat())
}

fn plan(driver: Option<&[(&str, &str)]>, flags: &[&str]) -> Value {
    let output = sayfa(driver, &[&["plan", "--json"], flags].concat());
    serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{}", stderr(&output)))
}

// ---- without a driver

#[test]
fn without_a_driver_the_cpu_computes_and_only_notes_say_so() {
    assert_works(&score(None, &[]), &[]);
    let said = stderr(&score(None, &["-v"]));
    let about = said.lines().filter(|line| line.contains("NVIDIA")).collect::<Vec<_>>();
    assert_eq!(about, ["no NVIDIA driver was found (libcuda.so): the CPU computes everything"]);
    assert!(said.contains("CPU, "), "{said}");
    for flags in [&["-v", "--device", "cpu"][..], &["-v", "-ngl", "0"], &["-v", "--device", "cuda", "-ngl", "0"]] {
        let output = score(None, flags);
        assert!(output.status.success() && !stderr(&output).contains("NVIDIA"), "{}", stderr(&output));
    }
}

#[test]
fn a_number_of_layers_is_a_wish_and_a_device_by_name_an_order() {
    for flags in [["-ngl", "99"], ["--gpu-layers", "all"], ["--n-gpu-layers", "1"]] {
        assert_works(&score(None, &flags), &["(-ngl)", flags[1], "no NVIDIA driver", "the CPU computes"]);
    }
    assert_works(&score(None, &["-ngl", "5", "--device", "cpu"]), &["(-ngl)", "no effect", "--device cpu"]);
    for (device, name) in [("cuda", "--device cuda:0"), ("cuda:3", "--device cuda:3")] {
        assert_refused(&score(None, &["--device", device]), 1, &[name, "no NVIDIA driver", "libcuda.so"]);
        let output = sayfa(None, &["plan", "-m", &micro(), "--device", device]);
        assert_refused(&output, 1, &[name, "no NVIDIA driver"]);
    }
}

#[test]
fn flags_that_make_no_sense_are_one_sentence() {
    for (flags, words) in [
        (&["--device", "gpu"][..], &["--device", "cuda:N", "'gpu'"][..]),
        (&["--device", "cuda:-1"], &["--device", "cuda:-1"]),
        (&["-ngl", "-1"], &["--gpu-layers", "auto or all", "'-1'"]),
        (&["-ngl", "some"], &["--gpu-layers", "auto or all", "'some'"]),
        (&["--compare-kv", "--device", "cuda"], &["--compare-kv", "f32", "--device"]),
    ] {
        assert_refused(&score(None, flags), 2, words);
    }
    let output = sayfa(None, &["plan", "--shape", "llama-2-7b", "--vram", "24GiB", "--device", "cpu"]);
    assert_refused(&output, 2, &["--vram", "--device cpu"]);
}

#[test]
fn plans_for_a_gpu_that_is_not_there_refuse_what_no_gpu_does() {
    let shape = |name, flags: &[&str]| sayfa(None, &[&["plan", "--shape", name, "--vram", "80GiB"], flags].concat());
    for flags in [["--kv-type", "f32"], ["--kv-type-v", "f32"]] {
        assert_refused(&shape("llama-2-7b", &flags), 1, &["--vram", "f32", "int8"]);
    }
    let output = shape("mixtral-8x7b", &["-c", "4096"]);
    assert!(output.status.success() && !output.stdout.is_empty());
    assert!(
        stderr(&output).starts_with("sayfa: warning: ") && stderr(&output).contains("experts"),
        "{}",
        stderr(&output)
    );
}

/// What is linked is there on every system: the driver is looked for when the program runs, and nothing else is needed.
#[cfg(target_os = "linux")]
#[test]
fn nothing_of_cuda_is_linked() {
    let output =
        Command::new("readelf").args(["-d", env!("CARGO_BIN_EXE_sayfa")]).output().expect("binutils are there");
    let text = String::from_utf8(output.stdout).unwrap();
    let needed: Vec<_> = text.lines().filter(|line| line.contains("(NEEDED)")).collect();
    let usual = ["libc.so", "libm.so", "libgcc_s.so", "ld-linux"];
    assert!(needed.len() > 1 && needed.iter().all(|line| usual.iter().any(|name| line.contains(name))), "{needed:?}");
}

// ---- with one

#[test]
fn a_gpu_is_used_when_there_is_one() {
    assert_works(&score(Some(&[]), &[]), &[]);
    for (flags, layers) in [(&[][..], "2 of 2"), (&["-ngl", "99"], "2 of 2"), (&["-ngl", "1"], "1 of 2")] {
        let output = score(Some(&[]), &[&["-v"], flags].concat());
        let said = stderr(&output);
        assert!(output.status.success(), "{said}");
        let lines: Vec<_> = said.lines().filter(|line| line.contains("cuda:0 (Stand-in GPU 0)")).collect();
        assert!(lines.len() == 2 && lines.iter().all(|line| line.contains(layers)), "{said}");
        assert_eq!(said.contains("first layers: CPU"), layers == "1 of 2", "{said}");
    }
    let said = stderr(&score(Some(&[]), &["-v", "-ngl", "0"]));
    assert!(!said.contains("cuda") && !said.contains("GPU"), "{said}");
}

/// Where no compiler is installed the driver's library has this name only.
#[test]
fn the_driver_is_found_under_its_versioned_name() {
    let folder = tempfile::tempdir().unwrap();
    fs::copy(cuda_driver::library_dir().join("libcuda.so"), folder.path().join("libcuda.so.1")).unwrap();
    let mut command = assert_cmd::Command::new(env!("CARGO_BIN_EXE_sayfa"));
    command.env("LD_LIBRARY_PATH", folder.path()).args(["perplexity", "-v", "-m", &micro(), "-p", "some words"]);
    let said = stderr(&command.timeout(Duration::from_secs(120)).output().unwrap());
    assert!(said.contains("cuda:0 (Stand-in GPU 0)"), "{said}");
}

#[test]
fn the_flags_choose_among_several_gpus() {
    let said = stderr(&score(Some(&[("DEVICES", "2")]), &["-v", "--device", "cuda:1"]));
    assert!(said.contains("cuda:1 (Stand-in GPU 1)") && !said.contains("cuda:0"), "{said}");
    assert_refused(&score(Some(&[]), &["--device", "cuda:99"]), 1, &["cuda:99", "only cuda:0"]);
    assert_refused(&score(Some(&[("DEVICES", "3")]), &["--device", "cuda:99"]), 1, &["cuda:99", "cuda:0 to cuda:2"]);
}

/// What the driver is like: names and values of its settings.
type Settings = &'static [(&'static str, &'static str)];

/// With words of the reason.
const UNUSABLE: [(Settings, &[&str]); 4] = [
    (&[("DRIVER_VERSION", "11080")], &["driver", "too old", "11.8", "12.0", "525"]),
    // One that says 12.0 and takes no kernels of it: found when they are loaded.
    (&[("PTX_VERSION", "7.8")], &["driver", "too old", "12.0"]),
    (&[("COMPUTE_CAPABILITY", "61")], &["Stand-in GPU 0", "6.1", "7.5"]),
    (&[("INIT_ERROR", "803")], &["driver", "803"]),
];

#[test]
fn what_cannot_be_used_is_one_warning_and_the_cpu_or_an_error_where_it_was_asked_for() {
    for (driver, words) in UNUSABLE {
        assert_works(&score(Some(driver), &[]), &[words, &["the CPU computes everything"]].concat());
        assert_works(&score(Some(driver), &["-ngl", "all"]), &[words, &["(-ngl) all"]].concat());
        assert_refused(&score(Some(driver), &["--device", "cuda"]), 1, &[words, &["--device cuda:0"]].concat());
        assert_works(&score(Some(driver), &["--device", "cpu"]), &[]);
    }
    // no GPU is no failure
    let none: &[(&str, &str)] = &[("DEVICES", "0")];
    assert_works(&score(Some(none), &[]), &[]);
    assert!(stderr(&score(Some(none), &["-v"])).contains("finds no GPU"));
    assert_works(&score(Some(none), &["-ngl", "2"]), &["(-ngl) 2", "finds no GPU"]);
    assert_refused(&score(Some(none), &["--device", "cuda"]), 1, &["finds no GPU"]);
}

#[test]
fn what_the_gpu_side_lacks_is_named() {
    let experts = data("variants/experts.gguf").display().to_string();
    for (flags, words) in [
        (&["-m", &micro(), "--kv-type", "f32"][..], &["f32", "CPU only"][..]),
        (&["-m", &micro(), "--activations", "16"], &["int16", "CPU only"]),
        (&["-m", &experts], &["experts", "CPU only"]),
    ] {
        let run = |more: &[&str]| sayfa(Some(&[]), &[&["perplexity", "-p", "some words"], flags, more].concat());
        assert_works(&run(&[]), words);
        assert_refused(&run(&["--device", "cuda"]), 1, words);
        assert_works(&run(&["--device", "cpu"]), &[]);
    }
    // what compares with f32 stays with the CPU
    let output = score(Some(&[]), &["-v", "--compare-kv"]);
    assert!(output.status.success() && !stderr(&output).contains("cuda"), "{}", stderr(&output));
}

// ---- memory

/// The default model has 31 layers with its head, and about 3 MiB in each; 256 MiB of a GPU are left alone.
fn small(held_mib: &str) -> [(&str, &str); 2] {
    [("MEMORY_MIB", "1024"), ("HELD_MIB", held_mib)]
}

#[test]
fn as_many_layers_as_fit_and_none_where_none_does() {
    let model = default_model().display().to_string();
    let layers = |held| {
        let report = plan(Some(&small(held)), &["-m", &model, "-c", "1024", "-b", "32"]);
        let gpu = report["devices"].as_array().unwrap().iter().find(|device| device["device"] == "GPU").cloned();
        gpu.map_or(0, |gpu| {
            assert!(gpu["fits"] == true, "{report}");
            assert_eq!(gpu["available_bytes"], (1024 - held.parse::<u64>().unwrap() - 256) << 20);
            report["gpu_layers_that_fit"].as_u64().unwrap()
        })
    };
    let counts = ["0", "640", "690", "720", "767"].map(layers);
    assert_eq!((counts[0], counts[4]), (31, 0), "{counts:?}");
    assert!(counts.is_sorted_by(|more, less| more >= less) && counts[2] > 0 && counts[2] < 31, "{counts:?}");

    let run = |held, flags: &[&str]| {
        let args = ["perplexity", "-m", &model, "-p", "Hi there", "-c", "1024", "-b", "32"];
        sayfa(Some(&small(held)), &[&args, flags].concat())
    };
    assert_works(&run("767", &[]), &["cuda:0", "1.0 MiB", "the CPU computes everything"]);
    assert_refused(&run("767", &["--device", "cuda"]), 1, &["--device cuda:0", "1.0 MiB", "head"]);
    // an explicit number that does not fit is refused with the largest that does
    for flags in [["-ngl", "31"], ["-ngl", "all"]] {
        let most = format!("at most -ngl {}", counts[2]);
        assert_refused(&run("690", &flags), 1, &["(-ngl) 31", "1024 tokens", "MiB", &most, "--force"]);
    }
}

/// A few tokens through a model that lies on both.
#[test]
fn a_model_in_two_parts_answers() {
    let model = default_model().display().to_string();
    let output = sayfa(
        Some(&[]),
        &["run", "-v", "-m", &model, "-p", "Hi", "--raw", "-n", "1", "--temp", "0", "-c", "64", "-ngl", "2"],
    );
    let said = stderr(&output);
    assert!(output.status.success() && !output.stdout.is_empty(), "{said}");
    assert!(said.contains("2 of 31") && said.contains("first layers: CPU"), "{said}");
}

/// A context that nobody gave is what both devices have room for.
#[test]
fn the_default_context_is_what_the_gpu_has_room_for() {
    let model = default_model().display().to_string();
    let run = |flags: &[&str]| {
        let args = ["run", "-v", "-m", &model, "-p", "Hi", "--raw", "-n", "0", "-b", "32"];
        stderr(&sayfa(Some(&small("600")), &[&args, flags].concat()))
    };
    let said = run(&["-ngl", "all"]);
    let context = |said: &str| {
        let line =
            said.lines().find(|line| line.starts_with("context: ")).unwrap_or_else(|| panic!("{said}")).to_string();
        line.split(' ').nth(1).unwrap().parse::<usize>().unwrap()
    };
    assert!((512..8192).contains(&context(&said)), "{said}");
    assert!(said.contains("what fits (cuda:0 (Stand-in GPU 0))"), "{said}");
    assert!(context(&run(&["-ngl", "all", "--kv-type", "int8"])) > context(&said) * 3 / 2);
}

/// What a plan says of a GPU is what an engine takes there: never more, and not much less.
#[test]
fn a_plan_counts_what_is_really_allocated() {
    cuda_driver::install();
    let free = || sayfa::backend::cuda::device(0).unwrap_or_else(|error| panic!("{error}")).info.free_bytes;
    for (path, layers) in
        [(default_model(), 31), (default_model(), 7), (data("micro/Q3_K.gguf"), 2), (data("micro/IQ4_XS.gguf"), 1)]
    {
        let model = models::load(&path);
        let tied = model.output.weight.bytes();
        for kv_type in [KvType::F16, KvType::Int8] {
            let setting = Setting { kv_type, batch_tokens: 64, ..Setting::default() };
            let before = free();
            let gpu = Gpu { ordinal: 0, offloaded: layers, graphs: true };
            let backend = backend::open(model.clone(), &models::options(setting), Some(gpu)).expect("it fits");
            let options = Options { context_tokens: 2048, sequences: 3, cache_tokens: 160, on_full: OnFull::Stop };
            let engine = Engine::new(backend, &options).expect("it fits");
            let taken = before - free();
            drop(engine);
            assert_eq!(free(), before, "nothing is left behind");
            let (layers, kv) = (layers.to_string(), kv_type.name());
            let flags = ["-m", path.to_str().unwrap(), "-ngl", &layers, "-b", "64", "-c", "2048", "--kv-type", kv];
            let flags = [&flags[..], &["--sequences", "3", "--cache-tokens", "160", "--vram", "2GiB"]].concat();
            let planned = plan(None, &flags)["devices"][0]["needed_bytes"].as_u64().unwrap();
            let about = format!("{} {layers} {kv}: {planned} planned, {taken} taken, head {tied}", path.display());
            assert!(taken <= planned && planned - taken < (8 << 20) + taken / 20, "{about}");
        }
    }
}

// ---- bench

#[test]
fn a_bench_on_a_gpu_counts_launches_and_holds_decode_against_a_copy_there() {
    let bench = |flags: &[&str]| {
        let args = ["bench", "--json", "-m", &micro(), "-p", "8", "-n", "3", "-d", "4", "-r", "1", "--stages"];
        let output = sayfa(Some(&[]), &[&args, flags].concat());
        serde_json::from_slice::<Value>(&output.stdout).unwrap_or_else(|_| panic!("{}", stderr(&output)))
    };
    let report = bench(&["--kv-types", "int8,f16"]);
    assert_eq!(report["machine"]["gpu"], "cuda:0 (Stand-in GPU 0), 2 of 2");
    let copies = report["ceilings"]["gpu"]["copy_bytes_per_second"].as_f64().unwrap();
    assert!(copies > 0.0 && report["ceilings"]["gpu"]["weights_share"] == 1.0, "{report}");
    let tests = report["tests"].as_array().unwrap();
    let kinds: Vec<_> =
        tests.iter().map(|test| (test["name"].as_str().unwrap(), test["kv_type"].as_str().unwrap())).collect();
    assert_eq!(kinds, [("prefill", "int8"), ("decode", "int8"), ("prefill", "f16"), ("decode", "f16")]);
    for test in tests {
        let number = |key: &str| test[key].as_f64().unwrap_or_else(|| panic!("{key}: {test}"));
        let launches = number("launches_per_token");
        if test["name"] == "decode" {
            // nine a layer, and the norm, the head and the likeliest token at the end
            assert!((5.0..=12.0).contains(&launches), "{launches}");
        }
        assert!(launches > 0.0 && test["limit"]["name"] == "memory", "{test}");
        let most = copies / number("bytes_per_token");
        assert!((number("most_tokens_per_second") / most - 1.0).abs() < 1e-9, "{test}");
        assert!(test["stages"].as_array().unwrap().iter().any(|stage| stage["stage"] == "ffn_down"), "{test}");
    }
    let half = bench(&["-ngl", "1"]);
    let share = half["ceilings"]["gpu"]["weights_share"].as_f64().unwrap();
    assert!(share > 0.0 && share < 0.5, "the head alone: {share}");
    assert!(bench(&["-ngl", "0"])["machine"].get("gpu").is_none());
}
