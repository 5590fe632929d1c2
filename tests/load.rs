//! How the program starts on a machine: threads, instructions, and the ways weights get into memory.

#[cfg(target_os = "linux")]
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

const SAYFA: &str = env!("CARGO_BIN_EXE_sayfa");

fn root(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

/// A short greedy answer of a micro model.
fn answer(flags: &[&str]) -> Command {
    let mut command = Command::new(SAYFA);
    command.args(["run", "-p", "the rain", "--raw", "-n", "20", "--temp", "0", "--ignore-eos", "-m"]);
    command.arg(root("tests/data/micro/Q4_0.gguf")).args(flags);
    command.stdin(Stdio::null()).env_remove("SAYFA_SIMD");
    command
}

/// The same command after `setup` in a shell.
#[cfg(target_os = "linux")]
fn after(setup: &str, command: &Command) -> Command {
    let mut shell = Command::new("sh");
    shell.args(["-c", &format!("{setup}; exec \"$0\" \"$@\"")]).arg(command.get_program()).args(command.get_args());
    shell.stdin(Stdio::null());
    shell
}

fn done(command: &mut Command) -> Output {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
    output
}

fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).expect("standard error is UTF-8")
}

/// What stands behind `key` in this process's status.
#[cfg(target_os = "linux")]
fn status(key: &str) -> String {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    status.lines().find_map(|line| line.strip_prefix(key)).unwrap().trim().to_string()
}

/// As in a container that was given one processor.
#[cfg(target_os = "linux")]
#[test]
fn a_process_that_is_held_to_one_processor_takes_one_thread() {
    let allowed = status("Cpus_allowed_list:");
    let first = allowed.split([',', '-']).next().unwrap();
    let mut held = Command::new("taskset");
    held.args(["-c", first, SAYFA]).args(answer(&["-v"]).get_args()).stdin(Stdio::null());
    assert!(stderr(&done(&mut held)).contains("CPU, 1 threads"));
}

#[test]
fn the_environment_names_the_instructions_and_a_flag_overrides_it() {
    let device = |value: &str, flags: &[&str]| {
        let said = stderr(&done(answer(&["-v"]).args(flags).env("SAYFA_SIMD", value)));
        said.lines().find(|line| line.contains(" threads, ")).unwrap().to_string()
    };
    assert!(device("scalar", &[]).ends_with("threads, scalar"));
    // What a flag overrides is not looked at.
    assert!(device("no-such-set", &["--simd", "scalar"]).ends_with("threads, scalar"));
    let best = stderr(&done(&mut answer(&["-v"])));
    assert!(best.contains(&device("", &[])), "{best}");
    let refused = answer(&[]).env("SAYFA_SIMD", "no-such-set").output().unwrap();
    let said = stderr(&refused);
    assert_eq!((refused.status.code(), said.lines().count()), (Some(2), 1), "{said}");
    for word in ["$SAYFA_SIMD", "'no-such-set'", "scalar", "avx2"] {
        assert!(said.contains(word), "no {word} in {said}");
    }
}

#[cfg(unix)]
#[test]
fn a_model_that_is_read_into_memory_or_locked_answers_the_same() {
    let plain = done(&mut answer(&[]));
    // A few KiB, which any user may lock.
    for flags in [&["--no-mmap"][..], &["--mlock"], &["--mlock", "--no-mmap"]] {
        let other = done(&mut answer(flags));
        assert_eq!((&other.stdout, stderr(&other)), (&plain.stdout, String::new()), "{flags:?}");
    }
}

#[cfg(target_os = "linux")]
#[test]
fn weights_that_cannot_be_locked_are_one_warning_with_the_limit() {
    // Who has CAP_IPC_LOCK may lock whatever the limit says.
    const CAP_IPC_LOCK: u32 = 14;
    let is_limited = u64::from_str_radix(&status("CapEff:"), 16).unwrap() >> CAP_IPC_LOCK & 1 == 0;
    let said = stderr(&done(&mut after("ulimit -l 16", &answer(&["--mlock"]))));
    let warned = said.contains("warning: --mlock: ") && said.contains("may lock 16.0 KiB (ulimit -l)");
    assert_eq!((warned, said.lines().count()), (is_limited, usize::from(is_limited)), "{said}");
}

/// Read weights are memory, where a map is the system's to drop.
#[cfg(target_os = "linux")]
#[test]
fn a_model_that_memory_cannot_hold_is_not_read_into_it() {
    let model = root("models/SmolLM2-135M-Instruct.Q4_1.gguf");
    assert!(model.exists(), "{} is missing: scripts/get_model.sh gets it", model.display());
    let mut command = Command::new(SAYFA);
    command.args(["run", "-t", "1", "-p", "a", "-n", "1", "-c", "64", "--no-mmap", "-m"]).arg(&model);
    let refused = after("ulimit -v 110000", &command).output().unwrap();
    let said = stderr(&refused);
    assert_eq!((refused.status.code(), said.lines().count()), (Some(1), 1), "{said}");
    for word in ["--no-mmap takes 94 MiB", "ulimit -v", "--force"] {
        assert!(said.contains(word), "no {word} in {said}");
    }
    done(&mut after("ulimit -v 2000000", &command));
}
