//! A chat as a person meets it, through a pseudo-terminal, and as a script meets it, through pipes.

use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use expectrl::process::unix::WaitStatus;
use expectrl::session::OsSession;
use expectrl::{Eof, Expect, Needle, Regex};
use serde_json::Value;
use tempfile::TempDir;

pub const CTRL_C: &str = "\x03";
pub const CTRL_D: &str = "\x04";
pub const CTRL_G: &str = "\x07";
pub const LEFT: &str = "\x1b[D";
pub const UP: &str = "\x1b[A";
pub const DOWN: &str = "\x1b[B";
pub const BACKSPACE: &str = "\x7f";

pub fn model() -> PathBuf {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("models/SmolLM2-135M-Instruct.Q4_1.gguf");
    assert!(path.exists(), "{} is missing: scripts/get_model.sh --tests gets it", path.display());
    path
}

pub fn sayfa(home: &TempDir, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_sayfa"));
    command.args(args);
    if !args.contains(&"-m") {
        command.arg("-m").arg(model());
    }
    command.env("HOME", home.path()).env("TERM", "xterm").env_remove("NO_COLOR").env_remove("XDG_STATE_HOME");
    command
}

/// The same in a terminal that shows what is typed, as those of people do and the ones made for tests do not.
pub fn echoing(sayfa: &Command) -> Command {
    let mut command = Command::new("sh");
    command.args(["-c", r#"stty echo; "$@"; echo "ended with $?"; stty -a"#, "sh"]);
    command.arg(sayfa.get_program()).args(sayfa.get_args());
    for (name, value) in sayfa.get_envs() {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    command
}

/// A chat in a pseudo-terminal.
pub struct Chat {
    pub terminal: OsSession,
    pub home: TempDir,
    /// What stood above the first prompt.
    pub opening: String,
    _machine: MutexGuard<'static, ()>,
}

/// One model at a time, so that the times measured here are its own.
pub fn machine() -> MutexGuard<'static, ()> {
    static MACHINE: Mutex<()> = Mutex::new(());
    MACHINE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// `args`, and for short greedy answers unless they say otherwise.
pub fn with_defaults<'a>(args: &[&'a str]) -> Vec<&'a str> {
    let defaults = [["-n", "8"], ["--temp", "0"], ["-c", "1024"]];
    let missing = defaults.iter().filter(|[flag, _]| !args.contains(flag)).flatten();
    ["chat"].iter().chain(missing).chain(args).copied().collect()
}

impl Chat {
    pub fn open(args: &[&str]) -> Chat {
        Chat::open_at(TempDir::new().unwrap(), args, |_| {})
    }

    pub fn open_at(home: TempDir, args: &[&str], change: impl FnOnce(&mut Command)) -> Chat {
        let machine = machine();
        let mut command = sayfa(&home, &with_defaults(args));
        change(&mut command);
        let mut terminal = OsSession::spawn(command).unwrap();
        terminal.set_expect_timeout(Some(Duration::from_secs(30)));
        // So wide that no sentence is broken.
        terminal.get_process_mut().set_window_size(500, 24).unwrap();
        let mut chat = Chat { terminal, home, opening: String::new(), _machine: machine };
        chat.opening = chat.wait_for(">>> ");
        chat
    }

    /// With an editor that runs this script; `$1` is the file.
    pub fn open_with_editor(script: &str, args: &[&str]) -> Chat {
        let home = TempDir::new().unwrap();
        let editor = home.path().join("editor");
        std::fs::write(&editor, format!("#!/bin/sh\n{script}\n")).unwrap();
        std::fs::set_permissions(&editor, std::fs::Permissions::from_mode(0o755)).unwrap();
        Chat::open_at(home, args, |command| {
            command.env("EDITOR", &editor).env_remove("VISUAL");
        })
    }

    /// A file in the chat's own folder.
    pub fn file(&self, name: &str, text: &str) -> String {
        let path = self.home.path().join(name);
        std::fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_string()
    }

    pub fn resize(&mut self, columns: u16) {
        self.terminal.get_process_mut().set_window_size(columns, 24).unwrap();
    }

    pub fn send(&mut self, text: &str) {
        self.terminal.send(text).unwrap();
    }

    /// Text from here up to and with `needle`, escape sequences and all.
    pub fn wait_for(&mut self, needle: impl Needle + std::fmt::Debug) -> String {
        let what = format!("{needle:?}");
        match self.terminal.expect(needle) {
            Ok(found) => {
                String::from_utf8_lossy(&[found.before(), found.get(0).unwrap_or_default()].concat()).into_owned()
            }
            Err(error) => panic!("waiting for {what}: {error}"),
        }
    }

    /// Sends a line that does not yet end the message.
    pub fn unfinished(&mut self, line: &str) {
        self.send(&format!("{line}\r"));
        self.wait_for("... ");
    }

    /// Sends a message and waits for the end of the answer.
    pub fn ask(&mut self, message: &str) -> String {
        self.send(&format!("{message}\r"));
        self.wait_for_answer()
    }

    pub fn wait_for_answer(&mut self) -> String {
        // The editor repeats the prompt at will, the figures after an answer come once.
        let answer = self.wait_for(Regex(r"context [^\]]*\d\]"));
        self.wait_for(">>> ");
        answer
    }

    /// Sends a line that prints little, and gives what it printed.
    pub fn command(&mut self, line: &str) -> String {
        self.send(&format!("{line}\r"));
        self.wait_for(">>> ")
    }

    /// Roles and contents as `/show messages` tells them.
    pub fn messages(&mut self) -> Vec<(String, String)> {
        let shown = self.command("/show messages");
        let lines = shown.lines().filter_map(|line| serde_json::from_str::<Value>(line.trim()).ok());
        let text = |value: &Value| value.as_str().unwrap().to_string();
        lines.map(|message| (text(&message["role"]), text(&message["content"]))).collect()
    }

    pub fn user_messages(&mut self) -> Vec<String> {
        let messages = self.messages().into_iter();
        messages.filter(|(role, _)| role == "user").map(|(_, content)| content).collect()
    }

    /// The user's messages once the line that stands at the prompt is sent and answered.
    pub fn messages_after_enter(&mut self) -> Vec<String> {
        self.ask("");
        self.user_messages()
    }

    /// The ids of the conversation as `/show ids` tells them.
    pub fn ids(&mut self) -> Vec<u32> {
        let shown = self.command("/show ids");
        let ids = shown.lines().find(|line| line.starts_with("[")).expect("a line of ids");
        serde_json::from_str(ids.trim()).unwrap()
    }

    /// Waits for the program's end and its exit code.
    pub fn exit_code(mut self) -> i32 {
        self.wait_for(Eof);
        match self.terminal.get_process().wait().unwrap() {
            WaitStatus::Exited(_, code) => code,
            other => panic!("ended by {other:?}"),
        }
    }
}

/// What a script gets that pipes `input` into `sayfa chat`.
pub fn piped(args: &[&str], input: &[u8]) -> Output {
    let _machine = machine();
    let home = TempDir::new().unwrap();
    fed(&mut sayfa(&home, &with_defaults(args)), input)
}

/// Runs a command to its end with `input` piped in.
pub fn fed(command: &mut Command, input: &[u8]) -> Output {
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    child.stdin.take().unwrap().write_all(input).unwrap();
    child.wait_with_output().unwrap()
}

/// The 135M model with another chat template, which must not be longer than its own.
pub fn with_template(template: &str, folder: &Path) -> PathBuf {
    let mut bytes = std::fs::read(model()).unwrap();
    let key = b"tokenizer.chat_template";
    let at = bytes.windows(key.len()).position(|window| window == key).unwrap() + key.len() + 4;
    let length = u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap()) as usize;
    let padding = length.checked_sub(template.len() + 4).expect("a shorter template");
    let padded = format!("{template}{{#{}#}}", " ".repeat(padding));
    bytes[at + 8..at + 8 + length].copy_from_slice(padded.as_bytes());
    let path = folder.join("other.gguf");
    std::fs::write(&path, bytes).unwrap();
    path
}

/// Makes the model think before it answers, and stop before it asks itself the next question.
pub const THINKING: &str = "Q: sky?
<think>
The sky is blue.
</think>
Blue.

Q: grass?
<think>
The grass is green.
</think>
Green.

Q: sun?
<think>
The sun is yellow.
</think>
Yellow.

Q: {{ messages[-1]['content'] + '\n' }}";

pub fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}
