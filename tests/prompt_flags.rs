//! `--system-file` and `--chat-template`, in `run` and in `chat`, and what pipes may hold: line ends, marks, nothing.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use serde_json::Value;

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

/// The program in a folder of files of its own.
struct Place {
    folder: tempfile::TempDir,
}

impl Place {
    fn new(files: &[(&str, &[u8])]) -> Place {
        let folder = tempfile::tempdir().unwrap();
        files.iter().for_each(|(name, bytes)| std::fs::write(folder.path().join(name), bytes).unwrap());
        Place { folder }
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_sayfa"));
        command.current_dir(self.folder.path()).env("HOME", self.folder.path()).env_remove("XDG_CONFIG_HOME");
        command.args(args);
        command
    }

    fn run(&self, args: &[&str], stdin: &[u8]) -> Output {
        let mut command = assert_cmd::Command::from_std(self.command(args));
        command.write_stdin(stdin).timeout(Duration::from_secs(120)).output().unwrap()
    }

    /// The prompt as a person would read it.
    fn prompt(&self, args: &[&str], stdin: &[u8]) -> String {
        let model = real_model();
        let output = self.run(&[&["run", "-m", &model, "--dump-prompt"], args].concat(), stdin);
        assert!(output.status.success(), "{}", stderr(&output));
        let dumped: Value = serde_json::from_slice(&output.stdout).unwrap();
        dumped["text"].as_str().unwrap().to_string()
    }
}

fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

fn assert_refused(output: &Output, code: i32, words: &[&str]) {
    let said = stderr(output);
    assert_eq!((output.status.code(), said.lines().count()), (Some(code), 1), "{said}");
    assert!(output.stdout.is_empty());
    for word in words {
        assert!(said.contains(word), "no {word:?} in {said}");
    }
}

#[test]
fn a_system_message_from_a_file_is_read_as_a_prompt_is() {
    let place = Place::new(&[
        ("plain", b"Be brief."),
        ("marked", b"\xef\xbb\xbfBe brief.\r\n"),
        ("empty", b""),
        ("latin", b"caf\xe9\n"),
    ]);
    let by_flag = place.prompt(&["--system", "Be brief.", "-p", "Hi"], b"");
    for file in ["plain", "marked"] {
        assert_eq!(place.prompt(&["--system-file", file, "-p", "Hi"], b""), by_flag);
    }
    assert_eq!(place.prompt(&["--system-file", "empty", "-p", "Hi"], b""), by_flag.replace("Be brief.", ""));
    assert!(place.prompt(&["--system-file", "plain", "--system-in-user", "-p", "Hi"], b"").contains("user\nBe brief."));
    let model = real_model();
    let latin = |flags: &[&str]| {
        let fixed = ["run", "-m", &model, "--dump-prompt", "-p", "Hi", "--system-file", "latin"];
        place.run(&[&fixed[..], flags].concat(), b"")
    };
    assert!(latin(&[]).status.success() && stderr(&latin(&[])).contains("warning: --system-file latin: not UTF-8"));
    assert_refused(&latin(&["--strict-utf8"]), 1, &["--system-file latin", "byte 3"]);
    let refused = |args: &[&str]| place.run(&[&["run", "-p", "Hi"], args].concat(), b"");
    assert_refused(&refused(&["--system-file", "none"]), 1, &["--system-file none", "No such file"]);
    assert_refused(&refused(&["--system-file", "plain", "--system", "x"]), 2, &["cannot be used with"]);
    assert_refused(&refused(&["--system-file", "plain", "--raw"]), 2, &["cannot be used with"]);
}

#[test]
fn a_chat_takes_system_file_and_chat_template_too() {
    let strict = b"{% if messages[0].role == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}\
                   {{ messages[-1].content }}";
    let own = b"{{ messages[-1].content }} =>";
    let place = Place::new(&[("system", b"Be brief.\n"), ("own.jinja", own), ("strict.jinja", strict)]);
    let model = real_model();
    let chat = |flags: &[&str], stdin: &[u8]| {
        let fixed = ["chat", "-m", &model, "-n", "2", "--temp", "0", "-c", "256"];
        place.run(&[&fixed[..], flags].concat(), stdin)
    };
    let output = chat(&["--system-file", "system"], b"/show system\n");
    assert!(output.status.success(), "{}", stderr(&output));
    let all = format!("{}{}", stderr(&output), String::from_utf8_lossy(&output.stdout));
    assert!(all.contains("Be brief."), "{all}");
    let output = chat(&["--chat-template", "strict.jinja", "--system", "x"], b"Hi\n");
    assert_refused(&output, 1, &["--system", "System role not supported", "--system-in-user"]);
    let output = chat(&["--chat-template", "strict.jinja"], b"/system x\n");
    assert!(!output.status.success() && stderr(&output).contains("System role not supported"));
    assert!(chat(&["--chat-template", "strict.jinja", "--system", "x", "--system-in-user"], b"Hi\n").status.success());
    assert!(chat(&["--chat-template", "own.jinja"], b"Hi\n").status.success());
}

#[test]
fn a_template_of_a_file_or_a_family_stands_in_for_the_models_own() {
    let place = Place::new(&[
        ("own.jinja", b"<{{ messages[-1].content }}>\n"),
        ("marked.jinja", b"\xef\xbb\xbf<{{ messages[-1].content }}>"),
        ("empty.jinja", b"{# nothing #}"),
        ("broken.jinja", b"one\ntwo {% if %}\n"),
        ("latin.jinja", b"caf\xe9"),
        ("chatml", b"a file of a family's name is not looked at"),
        ("never.jinja", b"{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"),
    ]);
    for file in ["own.jinja", "./own.jinja", "marked.jinja"] {
        assert_eq!(place.prompt(&["--chat-template", file, "-p", "Hi"], b""), "<Hi>");
    }
    let chatml = "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n";
    assert_eq!(place.prompt(&["--chat-template", "chatml", "-p", "Hi"], b""), chatml);
    assert_eq!(place.prompt(&["--chat-template", "vicuna", "-p", "Hi"], b""), "USER: Hi\nASSISTANT:");
    let refused = |template: &str| {
        let model = real_model();
        place.run(&["run", "-m", &model, "-p", "Hi", "--chat-template", template], b"")
    };
    assert_refused(&refused("broken.jinja"), 1, &["--chat-template broken.jinja", "cannot be used", "chat template:2"]);
    assert_refused(&refused("empty.jinja"), 1, &["the chat template made an empty prompt"]);
    assert_refused(&refused("lama3"), 1, &["no such file, and no such family", "alpaca, chatml", "llama3", "zephyr"]);
    assert_refused(&refused("latin.jinja"), 1, &["--chat-template latin.jinja: not UTF-8"]);
    assert_refused(&refused("."), 1, &["--chat-template .", "directory"]);
    assert_refused(&refused("never.jinja"), 1, &["--chat-template never.jinja", "more steps or memory"]);
    let strange = place.run(&["run", "-m", &real_model(), "-p", "Hi", "-n", "1", "--chat-template", "llama3"], b"");
    let warned = "--chat-template llama3: the vocabulary has no token <|start_header_id|>";
    assert!(strange.status.success() && stderr(&strange).contains(warned), "{}", stderr(&strange));
    // A model without a template of its own gets a place for a system message.
    let micro = micro();
    let args = ["run", "-m", &micro, "--dump-prompt", "-p", "Hi", "--system", "S", "--chat-template", "zephyr"];
    let output = place.run(&args, b"");
    let dumped: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(dumped["text"], "<|system|>\nS</s>\n<|user|>\nHi</s>\n<|assistant|>\n");
    assert!(stderr(&output).is_empty(), "{}", stderr(&output));
}

// ---- pipes

#[test]
fn line_ends_and_marks_inside_of_piped_text_stay_as_they_are() {
    let place = Place::new(&[]);
    for (stdin, text) in [
        (&b"one\r\ntwo\r\n"[..], "one\r\ntwo"),
        (b"one\rtwo\r", "one\rtwo\r"),
        (b"\xef\xbb\xbfone\xef\xbb\xbf\n", "one\u{feff}"),
        (b"\n\none\n\n", "\n\none\n"),
        (b"  one  \n", "  one  "),
        (b"a\0b", "a\0b"),
    ] {
        assert_eq!(place.prompt(&["--raw"], stdin), text);
    }
    // UTF-16 is not UTF-8, and is not guessed.
    let model = real_model();
    let output = place.run(&["run", "-m", &model, "--dump-prompt", "--raw"], b"\xff\xfeo\0n\0e\0");
    assert!(output.status.success() && stderr(&output).contains("warning: standard input: not UTF-8"));
}

#[test]
fn a_chat_without_input_ends_and_writes_nothing() {
    let place = Place::new(&[]);
    let micro = micro();
    let output = place.run(&["chat", "-m", &micro], b"");
    assert!(output.status.success() && output.stdout.is_empty(), "{}", stderr(&output));
    let output = place.run(&["chat", "-m", &micro, "-n", "3", "--temp", "0"], b"the rain\r\nin spain");
    let said = String::from_utf8(output.stdout.clone()).unwrap();
    assert!(output.status.success() && !said.contains(">>>") && !output.stdout.contains(&0x1b), "{said}");
    assert_eq!(
        output.stdout,
        place.run(&["chat", "-m", &micro, "-n", "3", "--temp", "0"], b"the rain\nin spain\n").stdout
    );
}

#[test]
fn a_pipe_gets_each_line_as_it_is_complete() {
    let place = Place::new(&[]);
    let micro = micro();
    // At a high temperature this random model writes a line end now and then, and would go on for minutes.
    let args = ["run", "-m", &micro, "--raw", "-p", "a", "-n", "1000000", "--ignore-eos", "-c", "2000000", "--force"];
    let mut command = place.command(&args);
    command.args(["--temp", "9", "--top-k", "0", "--top-p", "1", "--min-p", "0", "--seed", "1"]);
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let mut line = Vec::new();
    let mut stdout = BufReader::new(child.stdout.take().unwrap());
    stdout.read_until(b'\n', &mut line).unwrap();
    assert!(line.ends_with(b"\n"));
    assert!(child.try_wait().unwrap().is_none(), "the answer goes on");
    child.kill().unwrap();
    child.wait().unwrap();
}

#[cfg(unix)]
#[test]
fn a_terminal_gets_each_word_as_it_comes() {
    use expectrl::{Expect, Regex};
    let place = Place::new(&[]);
    let model = real_model();
    let args =
        ["run", "-q", "-m", &model, "-c", "2048", "--temp", "0", "-n", "1500", "--ignore-eos", "-p", "Count to ten."];
    let mut command = place.command(&args);
    command.env("NO_COLOR", "1").env("TERM", "xterm");
    let mut session = expectrl::Session::spawn(command).unwrap();
    session.set_expect_timeout(Some(Duration::from_secs(60)));
    // Without a flush after each piece the first thing to see would be a whole line, or a kilobyte.
    let shown = Expect::expect(&mut session, Regex("[A-Za-z0-9]")).unwrap();
    let seen = String::from_utf8_lossy(shown.as_bytes()).into_owned();
    assert!(!seen.contains('\n') && seen.len() < 64, "{seen:?}");
    assert!(session.get_process().is_alive().unwrap(), "the answer goes on");
    session.get_process_mut().exit(true).unwrap();
}

#[cfg(target_os = "linux")]
#[test]
fn who_waits_for_input_burns_nothing() {
    let place = Place::new(&[]);
    let micro = micro();
    let waiting = ["run", "chat"].map(|command| {
        let mut command = place.command(&[command, "-m", &micro]);
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
    });
    std::thread::sleep(Duration::from_secs(3));
    let ticks = |id: u32| {
        let stat = std::fs::read_to_string(format!("/proc/{id}/stat")).unwrap();
        let fields: Vec<i64> = stat.rsplit(") ").next().unwrap().split(' ').filter_map(|x| x.parse().ok()).collect();
        // Behind the name and the state: user and system time are the 11th and 12th number.
        fields[10] + fields[11]
    };
    let before: Vec<i64> = waiting.iter().map(|child| ticks(child.id())).collect();
    std::thread::sleep(Duration::from_secs(4));
    for (mut child, before) in waiting.into_iter().zip(before) {
        let used = ticks(child.id()) - before;
        assert!(used <= 2, "{used} hundredths of a second");
        // Its end ends the program.
        drop(child.stdin.take());
        child.wait().unwrap();
    }
}
