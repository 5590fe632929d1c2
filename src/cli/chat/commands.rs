//! The commands of a chat: one table, from which dispatch, help and completion come.

use anyhow::{anyhow, bail, ensure};

use super::editor::PROMPT;
use super::kv::draw;
use super::report::tell;
use super::session::Session;
use super::{external, paths, set, show};
use crate::cli::terminal::Terminal;

#[derive(Debug, PartialEq, Eq)]
pub enum Flow {
    Stay,
    Leave,
}

pub struct Command {
    pub names: &'static [&'static str],
    takes: &'static str,
    help: &'static str,
    pub argument: Argument,
    run: fn(&mut Session, &str, &mut Terminal) -> anyhow::Result<Flow>,
}

/// What Tab can know of a command's argument.
#[derive(Clone, Copy)]
pub enum Argument {
    Unknown,
    /// One of these words.
    Words(fn() -> Vec<String>),
    File,
    Branch,
    Model,
}

const fn command(
    names: &'static [&'static str],
    takes: &'static str,
    help: &'static str,
    argument: Argument,
    run: fn(&mut Session, &str, &mut Terminal) -> anyhow::Result<Flow>,
) -> Command {
    Command { names, takes, help, argument, run }
}

const COMMANDS: &[Command] = &[
    command(&["/help", "/?"], "[WHAT]", "show this, one command, or what keys do", Argument::Words(topics), help),
    command(&["/clear"], "", "forget the conversation, keep the system message", Argument::Unknown, clear),
    command(&["/undo"], "", "take back the last message and its answer", Argument::Unknown, undo),
    command(&["/retry"], "", "answer the last message anew", Argument::Unknown, retry),
    command(&["/edit"], "", "rewrite the last message in your editor", Argument::Unknown, edit),
    command(&["/read"], "FILE", "put a file's text before your next message", Argument::File, read),
    command(&["/fork"], "NAME", "go on in a copy of the conversation", Argument::Unknown, fork),
    command(&["/switch"], "[NAME]", "go on in another copy, or list them", Argument::Branch, switch),
    command(&["/system"], "TEXT", "set the system message; none takes it away", Argument::Unknown, set::system),
    command(
        &["/set"],
        "NAME VALUE",
        "set a parameter; /show parameters lists them",
        Argument::Words(set::words),
        set::set,
    ),
    command(&["/set"], "WORD", set::HELP, Argument::Words(set::words), set::set),
    command(&["/show"], "[WHAT]", show::HELP, Argument::Words(show::words), show::show),
    command(&["/stats"], "", "times and sizes of the last answer", Argument::Unknown, show::stats),
    command(&["/tokens"], "[TEXT]", "tokens of a text, or of the conversation", Argument::Unknown, show::tokens),
    command(&["/kv"], "", "draw the KV cache: free, cached, shared, own", Argument::Unknown, kv),
    command(&["/save"], "FILE", "save the conversation, and what is computed", Argument::File, save),
    command(&["/load"], "FILE", "go on with a saved one in place of this one", Argument::File, load),
    command(&["/model"], "[NAME]", "let another model go on, or name this one", Argument::Model, model),
    command(&["/bye", "/exit", "/quit"], "", "leave, as Ctrl-D does", Argument::Unknown, bye),
];

/// Runs a line that starts with a slash.
pub fn run(line: &str, session: &mut Session, terminal: &mut Terminal) -> anyhow::Result<Flow> {
    match find(line) {
        Some((command, rest)) => {
            let name = split_word(line).0;
            ensure!(!command.takes.is_empty() || rest.is_empty(), "{name} takes nothing behind it: nothing is done");
            (command.run)(session, rest, terminal)
        }
        None => {
            let word = line.split_whitespace().next().unwrap_or("/");
            bail!("{} Type /? for help, or /{word} to send it as a message", unknown(word))
        }
    }
}

fn unknown(word: &str) -> String {
    let meant = names().into_iter().filter(|name| name.len() > 3).find(|name| is_near(name, word));
    let meant = meant.map_or_else(|| ".".to_string(), |name| format!(", did you mean {name}?"));
    format!("Unknown command '{word}'{meant}")
}

/// Whether one letter was left out, added or mistaken, or two were exchanged.
fn is_near(a: &str, b: &str) -> bool {
    let (a, b): (Vec<char>, Vec<char>) = (a.chars().collect(), b.chars().collect());
    let start = a.iter().zip(&b).take_while(|(a, b)| a == b).count();
    let (a, b) = (&a[start..], &b[start..]);
    let end = a.iter().rev().zip(b.iter().rev()).take_while(|(a, b)| a == b).count();
    match (&a[..a.len() - end], &b[..b.len() - end]) {
        ([_], []) | ([], [_]) | ([_], [_]) => true,
        ([one, other], [first, second]) => (one, other) == (second, first),
        _ => false,
    }
}

/// The command that `line` names, and what follows it.
pub fn find(line: &str) -> Option<(&'static Command, &str)> {
    let (name, rest) = split_word(line);
    let command = COMMANDS.iter().find(|command| command.names.contains(&name))?;
    Some((command, rest.trim()))
}

/// Each once, although the help says more than one thing of some.
pub fn names() -> Vec<&'static str> {
    let mut names: Vec<_> = COMMANDS.iter().flat_map(|command| command.names).copied().collect();
    names.dedup();
    names
}

fn help(_: &mut Session, what: &str, terminal: &mut Terminal) -> anyhow::Result<Flow> {
    if what == "keys" || what == "shortcuts" {
        KEYS.iter().for_each(|(keys, help)| terminal.talk_in_columns(keys, help));
        return Ok(Flow::Stay);
    }
    let name = format!("/{}", what.trim_start_matches('/'));
    let wanted = |command: &&Command| what.is_empty() || what == "/" || command.names.contains(&name.as_str());
    ensure!(COMMANDS.iter().any(|command| wanted(&command)), "{}", unknown(&name));
    for command in COMMANDS.iter().filter(wanted) {
        let usage = format!("{} {}", command.names.join(", "), command.takes);
        terminal.talk_in_columns(&usage, command.help);
    }
    Ok(Flow::Stay)
}

/// What may follow `/help`.
fn topics() -> Vec<String> {
    let commands = names().into_iter().map(|name| name.trim_start_matches('/').to_string());
    std::iter::once("keys".to_string()).chain(commands.filter(|name| name != "?")).collect()
}

const KEYS: &[(&str, &str)] = &[
    (r#"""" ... """"#, "one message of all lines between them; a paste is one too"),
    (r"\", "at the end of a line: the message goes on"),
    ("//", "at its start: a message that begins with a slash"),
    ("Ctrl-C", "stop an answer; drop what is typed"),
    ("Ctrl-D", "leave, on an empty line"),
    ("Ctrl-G", "go on typing in your editor ($VISUAL, $EDITOR)"),
    ("Tab", "complete commands, parameters, files, branches, models"),
    ("Up, Down, Ctrl-R", "earlier messages, and search in them"),
    ("Ctrl-A, Ctrl-E", "to the start or end of the line"),
    ("Alt-B, Alt-F", "a word back or forth"),
    ("Ctrl-W, Ctrl-U, Ctrl-K", "delete the word before, all before, all behind"),
    ("Ctrl-L", "clear the screen"),
];

fn clear(session: &mut Session, _: &str, terminal: &mut Terminal) -> anyhow::Result<Flow> {
    session.clear();
    terminal.info("Cleared session context");
    Ok(Flow::Stay)
}

fn undo(session: &mut Session, _: &str, terminal: &mut Terminal) -> anyhow::Result<Flow> {
    terminal.info(&format!("Took back {}", session.undo()?));
    Ok(Flow::Stay)
}

fn retry(session: &mut Session, _: &str, terminal: &mut Terminal) -> anyhow::Result<Flow> {
    session.retry(terminal)?;
    Ok(Flow::Stay)
}

fn edit(session: &mut Session, _: &str, terminal: &mut Terminal) -> anyhow::Result<Flow> {
    let Some(old) = session.conversation.last_question() else {
        bail!("there is no message to rewrite yet; Ctrl-G opens the editor for a new one")
    };
    match external::edit(old, terminal)? {
        None => terminal.info("the file was left empty: nothing is changed"),
        Some(new) if new == old => terminal.info("the message is as it was; /retry answers it anew"),
        Some(new) => {
            if terminal.stderr_is_terminal() {
                terminal.talk_lines(&format!("{PROMPT}{new}"));
            }
            session.rewrite(new, terminal)?;
        }
    }
    Ok(Flow::Stay)
}

fn read(session: &mut Session, file: &str, terminal: &mut Terminal) -> anyhow::Result<Flow> {
    ensure!(!file.is_empty(), "/read needs the name of a file");
    if !session.read(&paths::typed(file), "/read", terminal)? {
        terminal.info("stopped: the file is not read");
    }
    Ok(Flow::Stay)
}

fn fork(session: &mut Session, name: &str, terminal: &mut Terminal) -> anyhow::Result<Flow> {
    let left = session.branch.clone();
    session.fork(name)?;
    terminal.info(&format!("Now in '{name}', a copy of '{left}'; /switch {left} goes back"));
    Ok(Flow::Stay)
}

fn switch(session: &mut Session, name: &str, terminal: &mut Terminal) -> anyhow::Result<Flow> {
    if name.is_empty() {
        tell(terminal, &format!("here: {}", session.branch_names().join("; waiting: ")));
        return Ok(Flow::Stay);
    }
    session.switch(name)?;
    terminal.info(&format!("Now in '{name}', {} messages", session.conversation.messages.len()));
    Ok(Flow::Stay)
}

fn kv(session: &mut Session, _: &str, terminal: &mut Terminal) -> anyhow::Result<Flow> {
    draw(session, terminal.talk_columns()).iter().for_each(|line| tell(terminal, line));
    Ok(Flow::Stay)
}

fn save(session: &mut Session, file: &str, terminal: &mut Terminal) -> anyhow::Result<Flow> {
    ensure!(!file.is_empty(), "/save needs the name of a file");
    session.save(&paths::typed(file), terminal)?;
    Ok(Flow::Stay)
}

fn load(session: &mut Session, file: &str, terminal: &mut Terminal) -> anyhow::Result<Flow> {
    ensure!(!file.is_empty(), "/load needs the name of a file");
    session.load(&paths::typed(file), terminal)?;
    Ok(Flow::Stay)
}

fn model(session: &mut Session, name: &str, terminal: &mut Terminal) -> anyhow::Result<Flow> {
    if !name.is_empty() {
        let changed = session.change_model(&paths::typed(name), terminal);
        // As the command line says it of its flag.
        changed.map_err(|error| match format!("{error:#}").strip_prefix("-m ") {
            Some(told) => anyhow!("/model {told}"),
            None => error,
        })?;
    }
    let loaded = &session.loaded;
    tell(terminal, &format!("{} on {}", loaded.name, loaded.engine.info().device));
    Ok(Flow::Stay)
}

fn bye(_: &mut Session, _: &str, _: &mut Terminal) -> anyhow::Result<Flow> {
    Ok(Flow::Leave)
}

pub fn split_word(text: &str) -> (&str, &str) {
    match text.split_once(char::is_whitespace) {
        Some((word, rest)) => (word, rest.trim_start()),
        None => (text, ""),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(line: &str) -> Option<(&'static str, &str)> {
        find(line).map(|(command, rest)| (command.names[0], rest))
    }

    #[test]
    fn the_first_word_is_the_command() {
        assert_eq!(found("/?"), Some(("/help", "")));
        assert_eq!(found("/quit"), Some(("/bye", "")));
        assert_eq!(found("/system  Be brief. "), Some(("/system", "Be brief.")));
        assert_eq!(found("/set temp 0"), Some(("/set", "temp 0")));
        assert_eq!(found("/system\nBe\nbrief."), Some(("/system", "Be\nbrief.")));
        assert_eq!(found("/helpful"), None);
        assert_eq!(found("/usr/bin/env"), None);
        assert_eq!(found("/"), None);
    }

    #[test]
    fn a_slip_of_the_fingers_is_understood() {
        for slip in ["/hlep", "/hep", "/helpp", "/hellp", "/hrlp"] {
            assert_eq!(unknown(slip), format!("Unknown command '{slip}', did you mean /help?"));
        }
        assert_eq!(unknown("/etc/hosts"), "Unknown command '/etc/hosts'.");
    }

    #[test]
    fn the_help_tells_every_word_that_set_and_show_know() {
        for word in show::words() {
            assert!(show::HELP.contains(&word), "{word}");
        }
        for word in set::switches() {
            assert!(set::HELP.contains(word), "{word}");
        }
    }
}
