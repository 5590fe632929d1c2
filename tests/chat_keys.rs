//! Keys, pastes, signals and the history of a chat, through a pseudo-terminal.

#[path = "support/chat.rs"]
#[allow(dead_code)] // each test file uses a part of it
mod support;

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::Duration;
use std::time::Instant;

use expectrl::Eof;
use expectrl::Regex;
use tempfile::TempDir;

use support::*;

#[test]
fn ctrl_c_stops_the_answer_and_keeps_the_conversation() {
    let mut chat = Chat::open(&["-n", "900", "--ignore-eos"]);
    chat.send("Tell me a long story.\r");
    // The first words of the answer, below the echo of the question.
    chat.wait_for(Regex(r"story\.[^\n]*\n[^\n]*\w+ \w+ \w+"));
    let pressed = Instant::now();
    chat.send(CTRL_C);
    chat.wait_for_answer();
    let waited = pressed.elapsed();
    assert!(waited < Duration::from_millis(500), "the prompt came back after {waited:?}");
    let before = chat.messages();
    assert_eq!(before.len(), 2);
    assert!(before[1].1.split_whitespace().count() >= 3, "what was said is kept: {before:?}");

    chat.command("/set num_predict 8");
    chat.ask("And then?");
    let after = chat.messages();
    assert_eq!(after[..2], before);
    assert_eq!(after.len(), 4);
    chat.send(CTRL_D);
    assert_eq!(chat.exit_code(), 0);
}

#[test]
fn ctrl_c_stops_the_reading_of_a_prompt_and_keeps_the_conversation() {
    let mut chat = Chat::open(&["-c", "8192"]);
    chat.ask("first");
    let before = chat.messages();
    chat.send(&format!("\x1b[200~{}\x1b[201~\r", "many words ".repeat(1500)));
    chat.wait_for("reading");
    let pressed = Instant::now();
    chat.send(CTRL_C);
    chat.wait_for("the message is taken back");
    let waited = pressed.elapsed();
    assert!(waited < Duration::from_millis(2000), "a step is short, but this took {waited:?}");
    chat.wait_for(">>> ");
    assert_eq!(chat.messages(), before);
    chat.ask("second");
    assert_eq!(chat.user_messages(), ["first", "second"]);
}

#[test]
fn lines_of_a_paste_that_is_not_marked_are_messages_one_by_one() {
    let mut chat = Chat::open(&[]);
    chat.send("one\rtwo\rthree\r");
    for _ in 0..3 {
        chat.wait_for_answer();
    }
    assert_eq!(chat.user_messages(), ["one", "two", "three"]);
}

#[test]
fn ctrl_d_gives_up_an_open_block_and_only_then_leaves() {
    let mut chat = Chat::open(&[]);
    for start in ["\"\"\"one", "one\\"] {
        chat.unfinished(start);
        chat.send(CTRL_D);
        chat.wait_for("The unfinished message is given up; Ctrl-D again leaves");
        chat.wait_for(">>> ");
    }
    assert!(chat.messages().is_empty());
    chat.send(CTRL_D);
    assert_eq!(chat.exit_code(), 0);
}

#[test]
fn sigterm_and_sighup_end_the_chat_from_anywhere_and_leave_the_terminal_as_it_was() {
    use rustix::process::{Pid, Signal, kill_process};
    for (signal, code) in [(Signal::TERM, 143), (Signal::HUP, 129)] {
        for busy in [false, true] {
            let mut chat = Chat::open(&["-n", "900", "--ignore-eos"]);
            if busy {
                chat.send("Tell me a long story.\r");
                chat.wait_for(Regex(r"story\.[^\n]*\n[^\n]*\w+ \w+ \w+"));
            }
            let pid = chat.terminal.get_process().pid().as_raw();
            kill_process(Pid::from_raw(pid).unwrap(), signal).unwrap();
            assert_eq!(chat.exit_code(), code);
        }
    }
    let mut chat = Chat::open_at(TempDir::new().unwrap(), &[], |command| *command = echoing(command));
    let shell = chat.terminal.get_process().pid().as_raw();
    let children = std::fs::read_to_string(format!("/proc/{shell}/task/{shell}/children")).unwrap();
    kill_process(Pid::from_raw(children.trim().parse().unwrap()).unwrap(), Signal::TERM).unwrap();
    chat.wait_for("ended with 143");
    let modes = chat.wait_for(Eof);
    for mode in [" icanon", " echo ", " icrnl"] {
        assert!(modes.contains(mode), "{mode} in {modes}");
    }
}

#[test]
fn without_a_history_nothing_is_written() {
    let mut chat = Chat::open(&["--no-history"]);
    chat.ask("first");
    chat.send(UP);
    chat.ask("");
    assert_eq!(chat.user_messages(), ["first", "first"]);
    assert!(!chat.home.path().join(".local").exists());
}

#[test]
fn ctrl_c_at_the_prompt_drops_the_line_and_gives_a_hint() {
    let mut chat = Chat::open(&[]);
    chat.send("never sent");
    chat.send(CTRL_C);
    chat.wait_for("Ctrl-D or /bye leaves");
    chat.wait_for(">>> ");
    // A block in the making goes too.
    chat.send("\"\"\"nor this\r");
    chat.wait_for("... ");
    chat.send(CTRL_C);
    chat.wait_for("Ctrl-D or /bye leaves");
    chat.wait_for(">>> ");
    chat.ask("sent");
    assert_eq!(chat.user_messages(), ["sent"]);
    chat.send("/bye\r");
    assert_eq!(chat.exit_code(), 0);
}

#[test]
fn ctrl_d_leaves_from_an_empty_line_only() {
    let mut chat = Chat::open(&[]);
    chat.send("sent once");
    chat.send(CTRL_D);
    chat.ask("");
    assert_eq!(chat.user_messages(), ["sent once"]);
    chat.send(CTRL_D);
    assert_eq!(chat.exit_code(), 0);
}

#[test]
fn pastes_blocks_and_continued_lines_are_one_message_each() {
    let mut chat = Chat::open(&[]);
    chat.send("\x1b[200~one\rtwo\nthree\x1b[201~");
    chat.ask("");
    for line in ["\"\"\"", "one", "", "two"] {
        chat.unfinished(line);
    }
    chat.ask("\"\"\"");
    chat.unfinished("one \\");
    chat.ask("two");
    assert_eq!(chat.user_messages(), ["one\ntwo\nthree", "one\n\ntwo", "one \ntwo"]);
}

#[test]
fn a_paste_or_a_block_that_begins_with_a_slash_is_a_message() {
    let mut chat = Chat::open(&[]);
    chat.send("\x1b[200~/bye\rhello\x1b[201~");
    chat.ask("");
    chat.unfinished("\"\"\"/clear");
    chat.ask("\"\"\"");
    // From the history it comes back as a message too.
    chat.send(UP);
    chat.ask("");
    assert_eq!(chat.user_messages(), ["/bye\nhello", "/clear", "/clear"]);
    // One pasted line is as if it were typed.
    chat.send("\x1b[200~/clear\x1b[201~");
    chat.command("");
    assert!(chat.messages().is_empty());
}

#[test]
fn lines_are_edited_by_what_a_person_sees_as_a_character() {
    let mut chat = Chat::open(&[]);
    chat.send("日本👍🏽");
    chat.send(LEFT);
    chat.send(BACKSPACE);
    chat.ask("");
    chat.ask("second");
    // Up and Down through the history lose nothing of what was being written.
    for key in ["dra", UP, UP, DOWN, DOWN, "ft"] {
        chat.send(key);
    }
    chat.ask("");
    chat.send(UP);
    chat.send(UP);
    chat.ask("!");
    assert_eq!(chat.user_messages(), ["日👍🏽", "second", "draft", "second!"]);
}

#[test]
fn history_is_kept_for_the_user_alone_and_read_again() {
    let mut chat = Chat::open(&[]);
    chat.ask("first");
    chat.unfinished("one \\");
    chat.ask("two");
    chat.send(CTRL_D);
    let home = std::mem::replace(&mut chat.home, TempDir::new().unwrap());
    assert_eq!(chat.exit_code(), 0);

    let file = home.path().join(".local/state/sayfa/history");
    let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!((mode(&file), mode(file.parent().unwrap())), (0o600, 0o700));

    let mut chat = Chat::open_at(home, &[], |_| {});
    chat.send(UP);
    chat.ask("");
    assert_eq!(chat.user_messages(), ["one \ntwo"]);
}

#[test]
fn a_history_that_cannot_be_used_is_one_warning() {
    // Unreadable at the start; unwritable at the first message.
    for (folder, what) in [("/dev/null/state", "cannot be read"), ("/proc/state", "cannot be written")] {
        let mut chat = Chat::open_at(TempDir::new().unwrap(), &[], |command| {
            command.env("XDG_STATE_HOME", folder);
        });
        let shown = [chat.opening.clone(), chat.ask("first"), chat.ask("second")].concat();
        assert_eq!(shown.matches("the history cannot be").count(), 1, "{shown}");
        assert!(shown.contains(what), "{shown}");
    }
}

#[test]
fn ctrl_g_opens_the_editor_with_what_is_typed_and_brings_it_back() {
    let mut chat = Chat::open_with_editor(r#"printf '%s, then more\n' "$(cat "$1")" > "$1""#, &[]);
    chat.send("one");
    chat.send(CTRL_G);
    chat.wait_for("one, then more");
    assert!(chat.messages_after_enter().contains(&"one, then more".to_string()));
    // Of a block all lines so far.
    chat.unfinished("\"\"\"two");
    chat.send("three");
    chat.send(CTRL_G);
    chat.wait_for("three, then more");
    assert!(chat.messages_after_enter().contains(&"two\nthree, then more".to_string()));
}

#[test]
fn ctrl_g_with_an_editor_that_fails_leaves_what_is_typed() {
    let mut chat = Chat::open_with_editor("exit 1", &[]);
    chat.send("typed");
    chat.send(CTRL_G);
    chat.wait_for("ended with code 1");
    chat.wait_for(">>> ");
    assert_eq!(chat.messages_after_enter(), ["typed"]);
}

#[test]
fn ctrl_c_in_the_editor_is_the_editors() {
    let mut chat = Chat::open_with_editor(
        r#"trap 'echo caught > "$1"; exit 0' INT; echo ready; while :; do sleep 0.05; done"#,
        &[],
    );
    chat.send("typed");
    chat.send(CTRL_G);
    chat.wait_for("ready");
    chat.send(CTRL_C);
    chat.wait_for(">>> ");
    chat.wait_for("caught");
    assert_eq!(chat.messages_after_enter(), ["caught"]);
}

#[test]
fn tab_completes_files_branches_and_parameters() {
    let mut chat = Chat::open(&[]);
    let file = chat.file("a long name.txt", "Ada keeps two cats.");
    chat.send(&format!("/read {}\t", file.replace(' ', r"\ ").trim_end_matches(r"ong\ name.txt")));
    chat.wait_for("name.txt");
    assert!(chat.command("").contains("tokens (context"));
    chat.command("/fork experiment");
    chat.send("/switch m\t");
    chat.wait_for("main");
    assert!(chat.command("").contains("Now in 'main'"));
    chat.send("/set parameter temp\t");
    chat.wait_for("temperature");
    assert!(chat.command(" 0.5").contains("Set parameter 'temperature' to '0.5'"));
}

#[test]
fn the_history_can_be_left_alone_for_a_while() {
    let mut chat = Chat::open(&[]);
    chat.ask("kept");
    chat.command("/set nohistory");
    chat.ask("secret");
    chat.command("/set history");
    chat.ask("kept too");
    let file = chat.home.path().join(".local/state/sayfa/history");
    let history = std::fs::read_to_string(file).unwrap();
    assert!(history.contains("kept\n") && history.contains("kept too") && !history.contains("secret"), "{history}");
}
