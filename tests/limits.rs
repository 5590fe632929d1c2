//! What is at hand is not always a text of sensible size on a disk with room: no panic, no signal, nothing lost.
#![cfg(unix)]

use std::fs;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

fn micro() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/micro/F32.gguf")
}

/// In a folder of its own, as its home.
fn sayfa(folder: &TempDir, script: &str, args: &[&str]) -> Command {
    let mut command = Command::new("sh");
    command.args(["-c", &format!("{script} exec \"$0\" \"$@\""), env!("CARGO_BIN_EXE_sayfa")]).args(args);
    command.arg("-m").arg(micro()).args(["--temp", "0"]);
    command.current_dir(folder.path()).env("HOME", folder.path());
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn fed(mut command: Command, input: &str) -> Output {
    let mut child = command.spawn().unwrap();
    // Who ends early does not read all.
    let _ = child.stdin.take().unwrap().write_all(input.as_bytes());
    child.wait_with_output().unwrap()
}

fn stderr(output: &Output) -> &str {
    std::str::from_utf8(&output.stderr).unwrap()
}

#[test]
fn signals_that_end_an_answer_show_in_the_exit_code_also_when_it_is_saved() {
    for (signal, code) in [(Signal::INT, 130), (Signal::TERM, 143), (Signal::HUP, 129)] {
        let folder = TempDir::new().unwrap();
        let args = ["run", "--raw", "-p", "a", "--ignore-eos", "-c", "100000", "--session", "s", "--stream-json"];
        let mut child = sayfa(&folder, "", &args).spawn().unwrap();
        drop(child.stdin.take());
        let mut stdout = child.stdout.take().unwrap();
        assert_eq!(stdout.read(&mut [0; 1]).unwrap(), 1);
        kill_process(Pid::from_child(&child), signal).unwrap();
        std::io::copy(&mut stdout, &mut std::io::sink()).unwrap();
        assert_eq!(child.wait().unwrap().code(), Some(code));
        assert!(folder.path().join("s").exists());
    }
}

#[test]
fn a_file_size_limit_is_an_error_of_the_save_and_the_chat_goes_on() {
    let folder = TempDir::new().unwrap();
    let limited = sayfa(&folder, "ulimit -f 5;", &["chat", "-n", "3", "-c", "512"]);
    let output = fed(limited, "hello\n/save s\n/show messages\n");
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(stderr(&output).contains("too large") && stderr(&output).contains("hello"), "{}", stderr(&output));
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0, "no part of a file stays");
}

#[test]
fn texts_that_can_never_fit_are_refused_before_they_are_read() {
    let folder = TempDir::new().unwrap();
    fs::write(folder.path().join("huge"), "x ".repeat(20 << 20)).unwrap();
    // Encoding them would take gigabytes.
    let limit = "ulimit -v 1500000;";
    let output = fed(sayfa(&folder, limit, &["chat", "-n", "3", "-c", "256"]), "hello\n/read huge\n/show messages\n");
    assert!(stderr(&output).contains("tokens at least, and the context has 256"), "{}", stderr(&output));
    assert!(stderr(&output).contains(r#""content":"hello""#), "{}", stderr(&output));
    let output = fed(sayfa(&folder, limit, &["run", "-c", "256", "-f", "huge"]), "");
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(
        stderr(&output).contains("at least ") && stderr(&output).contains("in a context of 256:"),
        "{}",
        stderr(&output)
    );
}

#[test]
fn what_never_ends_is_not_read_in_the_midst_of_a_chat() {
    let folder = TempDir::new().unwrap();
    let fifo = folder.path().join("fifo");
    assert!(Command::new("mkfifo").arg(&fifo).status().unwrap().success());
    let output = fed(sayfa(&folder, "", &["chat", "-n", "3", "-c", "256"]), "/read fifo\n/read /dev/zero\nhello\n");
    assert_eq!(stderr(&output).matches("is no regular file").count(), 2, "{}", stderr(&output));
    assert!(!output.stdout.is_empty());
}
