//! The chat as a script meets it, through pipes.

#[path = "support/chat.rs"]
#[allow(dead_code)] // each test file uses a part of it
mod support;

use std::io::Write;
use std::process::Stdio;

use serde_json::Value;
use tempfile::TempDir;

use support::*;

#[test]
fn a_reply_stays_in_the_ids_it_was_generated_in() {
    // Hot enough that the model writes words in ids the tokenizer would not choose.
    let hot = ["-n", "60", "--temp", "1.8", "--seed", "1", "--ignore-eos"];
    let conversation = b"Invent some words.\n/show messages\n/show ids\nMore.\n/show ids\n";
    let output = piped(&hot, conversation);
    assert!(output.status.success(), "{output:?}");
    let shown: Vec<Value> = text(&output.stderr).lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
    let [_, reply, first, second] = &shown[..] else { panic!("{shown:?}") };
    let ids = |list: &Value| -> Vec<u64> { list.as_array().unwrap().iter().map(|id| id.as_u64().unwrap()).collect() };
    let (first, second) = (ids(first), ids(second));

    let home = TempDir::new().unwrap();
    let reply = reply["content"].as_str().unwrap();
    let mut tokenize = sayfa(&home, &["tokenize", "--json"]);
    let chosen: Value = serde_json::from_slice(&fed(&mut tokenize, reply.as_bytes()).stdout).unwrap();
    let (_, spoken) = first.split_at(first.len() - 60);
    assert_ne!(ids(&chosen["ids"]), spoken, "else this would show nothing");
    assert_eq!(second[..first.len()], first);
}

#[test]
fn from_a_pipe_each_line_is_a_message_and_the_end_of_input_ends() {
    let output = piped(&["-n", "12"], b"What is 2+2?\n\nAnd 3+3?\r\n");
    assert!(output.status.success(), "{output:?}");
    let answers: Vec<&str> = text(&output.stdout).lines().filter(|line| !line.is_empty()).collect();
    assert!(answers[0].contains("is 4"), "{answers:?}");
    assert!(answers.len() >= 2, "{answers:?}");
    assert!(output.stdout.ends_with(b"\n"));
    for stream in [&output.stdout, &output.stderr] {
        assert!(!text(stream).contains(">>>") && !text(stream).contains('\x1b'), "{:?}", text(stream));
    }
    assert_eq!(text(&output.stderr), "");
}

#[test]
fn an_empty_pipe_is_an_empty_conversation() {
    for input in ["", "\n\n"] {
        let output = piped(&[], input.as_bytes());
        assert!(output.status.success());
        assert_eq!((text(&output.stdout), text(&output.stderr)), ("", ""));
    }
}

#[test]
fn commands_and_blocks_work_in_a_pipe_and_the_last_line_needs_no_end() {
    let output = piped(&[], b"\"\"\"\none\ntwo\n\"\"\"\n/show messages\n/clear\nlast\n/show messages");
    assert!(output.status.success(), "{output:?}");
    let shown = text(&output.stderr);
    assert!(shown.contains(r#"{"role":"user","content":"one\ntwo"}"#), "{shown}");
    assert!(shown.contains(r#"{"role":"user","content":"last"}"#), "{shown}");
}

#[test]
fn a_block_that_looks_like_a_command_is_a_message() {
    let output = piped(&[], b"\"\"\"\n/clear is a command\n\"\"\"\n\"\"\"/bye\"\"\"\n/show messages\n");
    assert!(output.status.success(), "{output:?}");
    let shown = text(&output.stderr);
    assert!(shown.contains(r#"{"role":"user","content":"/clear is a command"}"#), "{shown}");
    assert!(shown.contains(r#"{"role":"user","content":"/bye"}"#), "{shown}");
}

#[test]
fn bytes_that_are_no_text_are_replaced_with_one_warning() {
    let input = b"caf\xe9\n\xe6\xad\n/show messages\n";
    let output = piped(&[], input);
    assert!(output.status.success());
    let told = text(&output.stderr);
    assert_eq!(told.matches("not UTF-8").count(), 1, "{told}");
    assert!(told.contains("\"caf\u{fffd}\"") && told.contains("\"\u{fffd}\""), "{told}");

    let strict = piped(&["--strict-utf8"], input);
    assert_eq!(strict.status.code(), Some(1));
    assert!(text(&strict.stderr).contains("line 1 of standard input is not UTF-8"));
    assert!(strict.stdout.is_empty());
}

#[test]
fn a_failed_line_of_a_pipe_shows_in_the_exit_code() {
    let output = piped(&["-c", "64"], format!("{}\nhi\n", "many words ".repeat(100)).as_bytes());
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("leaves no room in the context of 64"));
    assert!(!output.stdout.is_empty(), "the second line is answered all the same");
}

#[test]
fn a_model_without_a_template_completes_text() {
    let micro = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/micro/F32.gguf");
    let output = piped(&["-m", micro, "-c", "64"], b"hi\n/show ids\n");
    assert!(output.status.success(), "{output:?}");
    let told = text(&output.stderr);
    assert!(told.contains("no chat template"), "{told}");
    let ids: Vec<u32> = serde_json::from_str(told.lines().last().unwrap()).unwrap();
    // The start of text, what was typed and eight tokens more, without any marks of turns.
    assert_eq!((ids[0], ids.iter().filter(|&&id| id < 3).count()), (1, 1), "{ids:?}");

    let refused = piped(&["-m", micro, "-c", "64", "--system", "x"], b"hi\n");
    assert_eq!(refused.status.code(), Some(1));
    assert!(text(&refused.stderr).contains("--system: the model has no chat template"));
}

#[test]
fn output_that_is_lost_ends_the_chat() {
    let _machine = machine();
    let home = TempDir::new().unwrap();
    let mut command = sayfa(&home, &with_defaults(&[]));
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    drop(child.stdout.take());
    child.stdin.take().unwrap().write_all(b"hi\nhi\n").unwrap();
    let closed = child.wait_with_output().unwrap();
    assert!(closed.status.success() && !text(&closed.stderr).contains("output"), "{closed:?}");

    let full = std::fs::File::create("/dev/full").unwrap();
    let mut child = command.stdout(full).spawn().unwrap();
    child.stdin.take().unwrap().write_all(b"hi\nhi\n").unwrap();
    let full = child.wait_with_output().unwrap();
    assert_eq!(full.status.code(), Some(1));
    assert!(text(&full.stderr).contains("cannot write to standard output"), "{full:?}");
}

#[test]
fn documents_are_read_before_the_first_question() {
    let home = TempDir::new().unwrap();
    let (one, two) = (home.path().join("one.txt"), home.path().join("two.txt"));
    std::fs::write(&one, "Ada keeps two cats.\r\n").unwrap();
    std::fs::write(&two, "\u{feff}Bob keeps a dog.\n").unwrap();
    let args = ["-f", one.to_str().unwrap(), "-f", two.to_str().unwrap()];
    let output = piped(&args, b"Who keeps cats?\n/show messages\n/stats\nAnd dogs?\n/show messages\n");
    assert!(output.status.success(), "{output:?}");
    let told = text(&output.stderr);
    let asked = r#"{"role":"user","content":"Ada keeps two cats.\n\nBob keeps a dog.\n\nWho keeps cats?"}"#;
    assert_eq!(told.matches(asked).count(), 2, "{told}");
    assert!(told.contains(r#"{"role":"user","content":"And dogs?"}"#), "{told}");
    let prompt = told.lines().find(|line| line.starts_with("prompt")).unwrap();
    let numbers: Vec<usize> = prompt.split(|c: char| !c.is_ascii_digit()).filter_map(|n| n.parse().ok()).collect();
    assert!(numbers[0] - numbers[1] <= 16, "the question alone was left to compute: {prompt}");
}

#[test]
fn documents_that_cannot_be_read_are_refused_with_the_numbers() {
    let home = TempDir::new().unwrap();
    let long = home.path().join("long.txt");
    std::fs::write(&long, "many words ".repeat(400)).unwrap();
    let refused = piped(&["-c", "256", "-f", long.to_str().unwrap()], b"hi\n");
    assert_eq!(refused.status.code(), Some(1), "{refused:?}");
    assert!(refused.stdout.is_empty());
    let told = text(&refused.stderr);
    assert!(told.contains("has 80") && told.contains("in the context of 256"), "{told}");
    assert_eq!(piped(&["-f", "-"], b"hi\n").status.code(), Some(2));
    let missing = piped(&["-f", "/no/such/file"], b"hi\n");
    assert_eq!(missing.status.code(), Some(1));
    assert_eq!(text(&missing.stderr), "sayfa: -f /no/such/file: cannot be opened: No such file or directory\n");
}

#[test]
fn what_was_read_and_not_yet_asked_about_is_saved_too() {
    let home = TempDir::new().unwrap();
    let (note, session) = (home.path().join("note"), home.path().join("session"));
    std::fs::write(&note, "Ada keeps two cats.").unwrap();
    let args = ["--session", session.to_str().unwrap()];
    let read = piped(&args, format!("Hello.\n/read {}\n", note.display()).as_bytes());
    assert!(read.status.success(), "{read:?}");
    let asked = piped(&args, b"How many?\n/show messages\n");
    let told = text(&asked.stderr);
    assert!(told.contains(r#""content":"Ada keeps two cats.\n\nHow many?""#), "{told}");
}

#[test]
fn an_editor_is_refused_where_there_is_no_terminal() {
    let output = piped(&[], b"hi\n/edit\n");
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("an editor needs a terminal"), "{output:?}");
}

#[test]
fn answers_of_a_chat_follow_a_form_as_long_as_it_is_set() {
    let script = b"/set format {\"enum\": [\"red\", \"green\"]}\nWhat colour is grass?\n/set temperature 0\n\
                   And blood?\n/set noformat\nSay hello.\n";
    let output = piped(&["-n", "6"], script);
    assert!(output.status.success(), "{output:?}");
    let answers: Vec<&str> = text(&output.stdout).lines().collect();
    assert!(answers[..2].iter().all(|answer| ["\"red\"", "\"green\""].contains(answer)), "{answers:?}");
    assert!(answers.len() > 2 && !["\"red\"", "\"green\""].contains(&answers[2]), "{answers:?}");

    let output = piped(&["-n", "2"], b"/set format {\"enum\": [\"a long row of words\"]}\nSay it.\n");
    assert!(text(&output.stderr).contains("was cut off before it followed /set format: "), "{output:?}");

    let output = piped(&["-n", "6", "--regex", "yes|no"], b"Is water wet?\n/set format {\nIs fire cold?\n");
    assert!(!output.status.success(), "what is no schema is told, and the form stays");
    assert!(text(&output.stdout).lines().all(|answer| ["yes", "no"].contains(&answer)), "{output:?}");
    assert!(text(&output.stderr).contains("/set format: not JSON"), "{output:?}");
}
