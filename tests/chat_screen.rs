//! What a chat shows, through a pseudo-terminal.

#[path = "support/chat.rs"]
#[allow(dead_code)] // each test file uses a part of it
mod support;

use std::process::Command;
use std::time::Duration;

use expectrl::Eof;
use expectrl::Expect;
use expectrl::Regex;
use expectrl::process::unix::WaitStatus;
use expectrl::session::OsSession;
use serde_json::Value;
use tempfile::TempDir;

use support::*;

#[test]
fn a_prompt_by_flag_is_answered_once_even_on_a_terminal() {
    let _machine = machine();
    let home = TempDir::new().unwrap();
    let mut terminal = OsSession::spawn(sayfa(&home, &["run", "-p", "hi", "-n", "8"])).unwrap();
    terminal.set_expect_timeout(Some(Duration::from_secs(30)));
    terminal.expect(Eof).unwrap();
    assert!(matches!(terminal.get_process().wait().unwrap(), WaitStatus::Exited(_, 0)));
}

#[test]
fn what_is_typed_during_an_answer_does_not_show_in_it_and_is_not_lost() {
    let home = TempDir::new().unwrap();
    let mut chat = Chat::open_at(home, &["-n", "60", "--ignore-eos"], |command| *command = echoing(command));
    chat.send("Tell me a long story.\r");
    chat.wait_for(Regex(r"story\.[^\n]*\n[^\n]*\w+ \w+ \w+"));
    chat.send("typed ahead");
    let answer = chat.wait_for(Regex(r"context \d+ of \d+\]"));
    assert!(!answer.contains("typed"), "{answer}");
    chat.wait_for("typed ahead");
    chat.ask("");
    assert_eq!(chat.user_messages(), ["Tell me a long story.", "typed ahead"]);
}

#[test]
fn an_answer_that_was_stopped_says_why() {
    let mut chat = Chat::open(&["-n", "8", "--ignore-eos"]);
    assert!(chat.ask("hi").contains("[stopped after -n 8 tokens]"));
    chat.command("/set n 900");
    chat.send("Tell me a long story.\r");
    chat.wait_for(Regex(r"story\.[^\n]*\n[^\n]*\w+ \w+ \w+"));
    chat.send(CTRL_C);
    assert!(chat.wait_for_answer().contains("[stopped]"));
}

#[test]
fn the_start_says_model_and_device_once() {
    let chat = Chat::open(&["-c", "0"]);
    assert_eq!(chat.opening.matches("SmolLM2").count(), 1, "{}", chat.opening);
    assert_eq!(chat.opening.matches("context").count(), 0, "{}", chat.opening);
    assert!(chat.opening.contains("thread") && chat.opening.contains("/? for help"), "{}", chat.opening);
    assert!(chat.opening.lines().all(|line| line.chars().count() < 80), "{}", chat.opening);
    assert!(chat.opening.lines().count() <= 3, "{}", chat.opening);
}

#[test]
fn the_figures_are_dim_unless_colours_are_unwanted() {
    let mut chat = Chat::open(&[]);
    assert!(chat.ask("hi").contains("\x1b[2m["));
    chat.command("/set quiet");
    let shown = chat.command("hi");
    assert!(!shown.contains("tokens/s"), "{shown}");

    drop(chat);
    let mut chat = Chat::open_at(TempDir::new().unwrap(), &[], |command| {
        command.env("NO_COLOR", "1");
    });
    let shown = chat.ask("hi");
    assert!(shown.contains("[8 tokens, ") && !shown.contains("\x1b[2m"), "{shown}");
}

#[test]
fn a_redirected_answer_holds_no_prompt() {
    let _machine = machine();
    let home = TempDir::new().unwrap();
    let file = home.path().join("answers");
    let sayfa = sayfa(&home, &with_defaults(&["-n", "12"]));
    let mut command = Command::new("sh");
    command.args(["-c", r#"out=$1; shift; exec "$@" > "$out""#, "sh"]).arg(&file);
    command.arg(sayfa.get_program()).args(sayfa.get_args()).env("HOME", home.path()).env("TERM", "xterm");
    let mut terminal = OsSession::spawn(command).unwrap();
    terminal.set_expect_timeout(Some(Duration::from_secs(30)));
    terminal.expect(">>> ").unwrap();
    terminal.send("What is 2+2?\r").unwrap();
    terminal.expect("tokens/s").unwrap();
    terminal.expect(">>> ").unwrap();
    terminal.send(CTRL_D).unwrap();
    terminal.expect(Eof).unwrap();
    let answers = std::fs::read_to_string(&file).unwrap();
    assert!(answers.contains("is 4"), "{answers:?}");
    assert!(!answers.contains(['>', '\x1b', '[']), "{answers:?}");
}

#[cfg(target_os = "linux")]
#[test]
fn waiting_costs_nothing() {
    let chat = Chat::open(&[]);
    let pid = chat.terminal.get_process().pid();
    // Fields 14 and 15, user and system time in ticks of 10 ms, counted from behind the name in parentheses.
    let ticks = || {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
        let fields: Vec<&str> = stat[stat.rfind(')').unwrap()..].split_whitespace().collect();
        fields[12].parse::<u64>().unwrap() + fields[13].parse::<u64>().unwrap()
    };
    std::thread::sleep(Duration::from_millis(500));
    let before = ticks();
    std::thread::sleep(Duration::from_secs(3));
    let used = ticks() - before;
    assert!(used <= 2, "{used} ticks in three seconds at the prompt");
}

/// What a terminal of endless lines shows of an answer: words that were taken back are gone.
fn on_screen(sent: &str) -> Vec<String> {
    let mut lines = vec![String::new()];
    let mut rest = sent;
    while let Some(c) = rest.chars().next() {
        rest = &rest[c.len_utf8()..];
        let line = lines.last_mut().unwrap();
        match c {
            '\r' => {}
            '\n' => lines.push(String::new()),
            '\x1b' => {
                let end = rest.find(|c: char| c.is_ascii_alphabetic()).unwrap();
                if rest[end..].starts_with('D') {
                    let kept = line.chars().count() - rest[1..end].parse::<usize>().unwrap();
                    *line = line.chars().take(kept).collect();
                }
                rest = &rest[end + 1..];
            }
            _ => line.push(c),
        }
    }
    lines
}

/// The answer to `question` as it stands on the screen, and as the model said it.
fn answer_lines(chat: &mut Chat, question: &str) -> (Vec<String>, String) {
    let sent = chat.ask(question);
    let answer = &sent[sent.find("\n").unwrap() + 1..];
    let lines = on_screen(answer).into_iter().take_while(|line| !line.starts_with('['));
    let lines = lines.filter(|line| !line.trim().is_empty()).collect();
    (lines, chat.messages().pop().unwrap().1)
}

/// Short, as the prompt of a narrow terminal holds it, too.
const RIVER: &str = "A river story.";

fn words(text: &str) -> Vec<&str> {
    text.split_whitespace().collect()
}

#[test]
fn lines_end_between_words_at_any_width() {
    let mut chat = Chat::open(&["-n", "80", "--ignore-eos"]);
    for width in [80, 40, 23] {
        chat.resize(width);
        let (lines, said) = answer_lines(&mut chat, RIVER);
        assert!(lines.iter().all(|line| line.trim_end().chars().count() < usize::from(width)), "{width}: {lines:#?}");
        assert!(lines.len() > 3, "{lines:#?}");
        assert_eq!(words(&lines.join("\n")), words(&said));
        chat.command("/clear");
    }
    chat.command("/set nowordwrap");
    let (lines, said) = answer_lines(&mut chat, RIVER);
    assert_eq!(lines, said.lines().filter(|line| !line.trim().is_empty()).collect::<Vec<_>>());
    drop(chat);
    let mut chat = Chat::open(&["-n", "80", "--ignore-eos", "--no-wrap"]);
    chat.resize(40);
    let (lines, said) = answer_lines(&mut chat, RIVER);
    assert_eq!(lines, said.lines().filter(|line| !line.trim().is_empty()).collect::<Vec<_>>());
}

#[test]
fn an_answer_in_a_pipe_is_not_wrapped() {
    let ask = ["--ignore-eos", "-n", "80"];
    let shown = piped(&ask, format!("{RIVER}\n/show messages\n").as_bytes());
    let message = text(&shown.stderr).lines().last().unwrap();
    let message: Value = serde_json::from_str(message).unwrap();
    assert_eq!(text(&shown.stdout), format!("{}\n", message["content"].as_str().unwrap()));
    assert!(text(&shown.stdout).lines().any(|line| line.chars().count() > 100), "else this would show nothing");
}

/// Options for a model that thinks, in a folder of their own.
fn thinking(home: &TempDir) -> Vec<String> {
    let model = with_template(THINKING, home.path());
    ["-m", model.to_str().unwrap(), "-n", "40", "--stop", "Q:"].map(str::to_string).to_vec()
}

#[test]
fn thoughts_are_dimmed_or_hidden_and_stay_in_the_conversation() {
    let home = TempDir::new().unwrap();
    let args = thinking(&home);
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let mut chat = Chat::open_at(home, &args, |_| {});
    let shown = chat.ask("snow?");
    assert!(shown.contains("\x1b[2m<think>\x1b[0m"), "{shown:?}");
    assert!(shown.contains("\x1b[2m</think>"), "{shown:?}");
    let answer = shown.rsplit("\x1b[2m").nth(1).unwrap();
    assert!(answer.contains("\x1b[0mWhite"), "what was said is not dim: {shown:?}");
    let said = chat.messages().pop().unwrap().1;
    assert!(said.starts_with("<think>\nThe snow is white.\n</think>\nWhite."), "{said:?}");

    chat.command("/clear");
    chat.command("/set nothink");
    let shown = chat.ask("snow?");
    assert!(!shown.contains("think>") && !shown.contains("The snow") && shown.contains("White."), "{shown:?}");
    assert_eq!(chat.messages().pop().unwrap().1, said, "the conversation holds it all the same");
    drop(chat);

    let home = TempDir::new().unwrap();
    let args = thinking(&home);
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let mut chat = Chat::open_at(home, &args, |command| {
        command.env("NO_COLOR", "1");
    });
    let shown = chat.ask("snow?");
    assert!(shown.contains("<think>") && !shown.contains("\x1b[2m"), "{shown:?}");
}

#[test]
fn hidden_thoughts_are_left_out_of_pipes_too() {
    let home = TempDir::new().unwrap();
    let args = thinking(&home);
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let whole = piped(&args, b"snow?\n");
    assert!(text(&whole.stdout).starts_with("<think>\nThe snow is white.\n</think>\nWhite."), "{whole:?}");
    let hidden = piped(&[args.as_slice(), &["--hide-thinking"]].concat(), b"snow?\n");
    assert!(text(&hidden.stdout).starts_with("White."), "{hidden:?}");
    let run = [&["run", "--temp", "0", "-p", "snow?", "--hide-thinking"], args.as_slice()].concat();
    let run = fed(&mut sayfa(&home, &run), b"");
    assert_eq!(text(&run.stdout), text(&hidden.stdout), "{run:?}");
}

#[test]
fn a_template_that_opens_the_thought_is_understood() {
    let home = TempDir::new().unwrap();
    let model = with_template(&THINKING.replace("+ '\n' }}", "+ '\n<think>\n' }}"), home.path());
    let args = ["-m", model.to_str().unwrap(), "-n", "40", "--stop", "Q:", "--hide-thinking"];
    let hidden = piped(&args, b"snow?\n/show messages\n");
    assert!(text(&hidden.stdout).starts_with("White."), "{hidden:?}");
    assert!(text(&hidden.stderr).contains(r"The snow is white.\n</think>\nWhite."), "{hidden:?}");
}

#[test]
fn figures_can_be_left_out_by_a_flag() {
    let mut chat = Chat::open(&["--no-figures"]);
    let shown = chat.command("hi");
    assert!(!shown.contains("tokens/s"), "{shown}");
    chat.command("/set verbose");
    chat.ask("hi");
}

#[test]
fn json_on_a_terminal_is_not_broken_between_words() {
    let _machine = machine();
    let home = TempDir::new().unwrap();
    let mut terminal =
        OsSession::spawn(sayfa(&home, &["run", "-p", RIVER, "-n", "60", "--temp", "0", "--json"])).unwrap();
    terminal.get_process_mut().set_window_size(40, 24).unwrap();
    terminal.set_expect_timeout(Some(Duration::from_secs(30)));
    let shown = terminal.expect(Regex(r"\{.*\}")).unwrap();
    let report: Value = serde_json::from_slice(shown.get(0).unwrap()).unwrap();
    assert!(report["text"].as_str().unwrap().len() > 100, "{report}");
}
