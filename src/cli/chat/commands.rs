//! The commands of a chat: one table, from which dispatch, help and completion come.

use std::path::Path;

use anyhow::bail;

use super::kv::draw;
use super::session::Session;
use super::settings;
use crate::cli::counted;
use crate::cli::machine::mib;
use crate::cli::terminal::Terminal;
use crate::template::{Message, Role};

#[derive(Debug, PartialEq, Eq)]
pub enum Flow {
    Stay,
    Leave,
}

struct Command {
    names: &'static [&'static str],
    takes: &'static str,
    help: &'static str,
    run: fn(&mut Session, &str, &mut Terminal) -> anyhow::Result<Flow>,
}

const COMMANDS: &[Command] = &[
    Command { names: &["/help", "/?"], takes: "", help: "show this", run: help },
    Command { names: &["/clear"], takes: "", help: "forget the conversation, keep the system message", run: clear },
    Command { names: &["/undo"], takes: "", help: "take back the last message and its answer", run: undo },
    Command { names: &["/retry"], takes: "", help: "answer the last message anew", run: retry },
    Command { names: &["/fork"], takes: "NAME", help: "go on in a copy of the conversation", run: fork },
    Command { names: &["/switch"], takes: "[NAME]", help: "go on in another copy, or list them", run: switch },
    Command { names: &["/system"], takes: "TEXT", help: "set the system message", run: system },
    Command { names: &["/set"], takes: "NAME VALUE", help: "set a parameter; `/show parameters` lists them", run: set },
    Command { names: &["/set verbose"], takes: "", help: "show figures after each answer", run: set_verbose },
    Command { names: &["/set quiet"], takes: "", help: "show none", run: set_quiet },
    Command { names: &["/show"], takes: "[WHAT]", help: "info, messages, parameters, system or ids", run: show },
    Command {
        names: &["/stats"],
        takes: "",
        help: "times and sizes of the last answer and of the session",
        run: stats,
    },
    Command { names: &["/save"], takes: "FILE", help: "save the conversation and what is computed of it", run: save },
    Command {
        names: &["/load"],
        takes: "FILE",
        help: "go on with a saved conversation in place of this one",
        run: load,
    },
    Command { names: &["/kv"], takes: "", help: "draw the KV cache: what is free, cached, shared and own", run: kv },
    Command { names: &["/bye", "/exit", "/quit"], takes: "", help: "leave, as Ctrl-D does", run: bye },
];

const SHOWABLE: &[&str] = &["info", "messages", "parameters", "system", "ids"];

/// Runs a line that starts with a slash.
pub fn run(line: &str, session: &mut Session, terminal: &mut Terminal) -> anyhow::Result<Flow> {
    match find(line) {
        Some((command, rest)) => (command.run)(session, rest, terminal),
        None => {
            let word = line.split_whitespace().next().unwrap_or("/");
            bail!("Unknown command '{word}'. Type /? for help, or /{word} to send it as a message")
        }
    }
}

/// The command with the longest name that `line` starts with, and what follows it.
fn find(line: &str) -> Option<(&'static Command, &str)> {
    let rest_after = |name: &str| {
        let rest = line.strip_prefix(name)?;
        (rest.is_empty() || rest.starts_with(char::is_whitespace)).then(|| rest.trim())
    };
    let named = COMMANDS.iter().flat_map(|command| command.names.iter().map(move |&name| (command, name)));
    let found = named.filter_map(|(command, name)| Some((name.len(), command, rest_after(name)?)));
    found.max_by_key(|&(length, ..)| length).map(|(_, command, rest)| (command, rest))
}

/// What can be typed where `typed` stands, in the order of the table.
pub fn completions(typed: &str) -> Vec<String> {
    let commands = COMMANDS.iter().flat_map(|command| command.names).map(|name| name.to_string());
    let parameters = settings::names().into_iter().map(|name| format!("/set {name}"));
    let showable = SHOWABLE.iter().map(|what| format!("/show {what}"));
    // Sub-words only once their command is written out: `/s` should not list all parameters.
    let depth = typed.matches(' ').count();
    let all = commands.chain(parameters).chain(showable);
    all.filter(|text| text.starts_with(typed) && text.matches(' ').count() == depth).collect()
}

fn help(_: &mut Session, _: &str, terminal: &mut Terminal) -> anyhow::Result<Flow> {
    for command in COMMANDS {
        let usage = format!("{} {}", command.names.join(", "), command.takes);
        terminal.talk(&format!("{usage:<22} {}", command.help));
    }
    terminal.talk(r#"A message of several lines: between """ and """, with \ at the end of a line, or pasted."#);
    terminal.talk("A message that starts with a slash: write two, as in //etc/hosts.");
    terminal.talk("Ctrl-C stops an answer, Ctrl-D on an empty line leaves.");
    Ok(Flow::Stay)
}

fn clear(session: &mut Session, _: &str, terminal: &mut Terminal) -> anyhow::Result<Flow> {
    session.clear();
    terminal.info("Cleared session context");
    Ok(Flow::Stay)
}

fn undo(session: &mut Session, _: &str, terminal: &mut Terminal) -> anyhow::Result<Flow> {
    session.undo()?;
    terminal.info("Took back the last message and its answer");
    Ok(Flow::Stay)
}

fn retry(session: &mut Session, _: &str, terminal: &mut Terminal) -> anyhow::Result<Flow> {
    session.retry(terminal)?;
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
        terminal.talk(&format!("here: {}", session.branch_names().join("; waiting: ")));
        return Ok(Flow::Stay);
    }
    session.switch(name)?;
    terminal.info(&format!("Now in '{name}', {} messages", session.messages.len()));
    Ok(Flow::Stay)
}

fn kv(session: &mut Session, _: &str, terminal: &mut Terminal) -> anyhow::Result<Flow> {
    draw(session).iter().for_each(|line| terminal.talk(line));
    Ok(Flow::Stay)
}

fn system(session: &mut Session, text: &str, terminal: &mut Terminal) -> anyhow::Result<Flow> {
    if text.is_empty() {
        bail!("/system needs a text; `/show system` shows the present one");
    }
    session.set_system(text)?;
    terminal.info("Set system message");
    Ok(Flow::Stay)
}

/// `/set NAME VALUE`; ollama's `/set parameter NAME VALUE` and `/set system TEXT` too.
fn set(session: &mut Session, rest: &str, terminal: &mut Terminal) -> anyhow::Result<Flow> {
    let (name, value) = split_word(rest);
    match name {
        "system" => return system(session, value, terminal),
        "parameter" => return set(session, value, terminal),
        "" => bail!("/set needs a name and a value: {}, system, verbose or quiet", settings::names().join(", ")),
        _ => {}
    }
    session.set(name, value)?.iter().for_each(|idle| terminal.warn(idle));
    terminal.info(&format!("Set parameter '{name}' to '{value}'"));
    Ok(Flow::Stay)
}

fn set_verbose(session: &mut Session, _: &str, _: &mut Terminal) -> anyhow::Result<Flow> {
    session.verbose = true;
    Ok(Flow::Stay)
}

fn set_quiet(session: &mut Session, _: &str, _: &mut Terminal) -> anyhow::Result<Flow> {
    session.verbose = false;
    Ok(Flow::Stay)
}

fn show(session: &mut Session, what: &str, terminal: &mut Terminal) -> anyhow::Result<Flow> {
    match what {
        "" | "info" => show_info(session, terminal),
        "messages" => session.messages.iter().for_each(|message| terminal.talk(&as_json(message))),
        "parameters" => {
            session.settings.show().iter().for_each(|line| terminal.talk(line));
            terminal.talk(&format!("seed in use: {}", session.sampler.seed()));
        }
        "system" => match session.system() {
            Some(text) => terminal.talk(text),
            None => terminal.talk("no system message was set; the model's template may add its own"),
        },
        "ids" => terminal.talk(&format!("{:?}", session.spoken)),
        _ => bail!("/show knows {}, not '{what}'", SHOWABLE.join(", ")),
    }
    Ok(Flow::Stay)
}

fn show_info(session: &Session, terminal: &Terminal) {
    let loaded = &session.loaded;
    let config = &loaded.config;
    terminal.talk(&format!("model    {}", loaded.texts.path.display()));
    terminal.talk(&format!("weights  {} read for each token", mib(loaded.weights_bytes)));
    terminal.talk(&format!("layers   {} of width {}; vocabulary of {}", config.n_layers, config.dim, config.vocab));
    terminal.talk(&format!(
        "context  {} of {} tokens in use, {} bytes each",
        session.context_used(),
        loaded.engine.context_tokens(),
        loaded.kv_bytes_per_token
    ));
    terminal.talk(match loaded.texts.template {
        Some(_) => "template chat",
        None => "template none: plain completion",
    });
}

fn stats(session: &mut Session, _: &str, terminal: &mut Terminal) -> anyhow::Result<Flow> {
    terminal.talk(&format!("load     {:.2} s", session.loaded.load_seconds));
    if let Some(last) = &session.last {
        terminal.talk(&format!(
            "prompt   {} tokens, {} of them from the cache, {:.2} s, {:.1} tokens/s",
            last.prompt_tokens,
            last.cached_tokens,
            last.prefill_seconds,
            last.prefill_tokens_per_second()
        ));
        terminal.talk(&format!(
            "answer   {}, {:.2} s, {:.1} tokens/s",
            counted(last.ids.len(), "token"),
            last.decode_seconds,
            last.decode_tokens_per_second()
        ));
    }
    let used = session.context_used();
    terminal.talk(&format!(
        "context  {used} of {} tokens, {} of keys and values",
        session.loaded.engine.context_tokens(),
        mib(used as u64 * session.loaded.kv_bytes_per_token)
    ));
    Ok(Flow::Stay)
}

fn save(session: &mut Session, file: &str, terminal: &mut Terminal) -> anyhow::Result<Flow> {
    if file.is_empty() {
        bail!("/save needs the name of a file");
    }
    session.save(Path::new(file), terminal)?;
    Ok(Flow::Stay)
}

fn load(session: &mut Session, file: &str, terminal: &mut Terminal) -> anyhow::Result<Flow> {
    if file.is_empty() {
        bail!("/load needs the name of a file");
    }
    session.load(Path::new(file), terminal)?;
    Ok(Flow::Stay)
}

fn bye(_: &mut Session, _: &str, _: &mut Terminal) -> anyhow::Result<Flow> {
    Ok(Flow::Leave)
}

fn split_word(text: &str) -> (&str, &str) {
    match text.split_once(char::is_whitespace) {
        Some((word, rest)) => (word, rest.trim_start()),
        None => (text, ""),
    }
}

/// One line, from which a script can tell every character of the message.
fn as_json(message: &Message) -> String {
    let role = match message.role {
        Role::System => "system",
        Role::User => "user",
        Role::Assistant => "assistant",
    };
    serde_json::json!({ "role": role, "content": message.content }).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(line: &str) -> Option<(&'static str, &str)> {
        find(line).map(|(command, rest)| (command.names[0], rest))
    }

    #[test]
    fn the_longest_name_that_ends_at_a_word_is_the_command() {
        assert_eq!(found("/?"), Some(("/help", "")));
        assert_eq!(found("/quit"), Some(("/bye", "")));
        assert_eq!(found("/system  Be brief. "), Some(("/system", "Be brief.")));
        assert_eq!(found("/set temp 0"), Some(("/set", "temp 0")));
        assert_eq!(found("/set verbose"), Some(("/set verbose", "")));
        assert_eq!(found("/set verbosely 1"), Some(("/set", "verbosely 1")));
        assert_eq!(found("/helpful"), None);
        assert_eq!(found("/usr/bin/env"), None);
        assert_eq!(found("/"), None);
    }

    #[test]
    fn every_name_completes_from_its_beginning() {
        assert_eq!(completions("/he"), ["/help"]);
        assert_eq!(completions("/s"), ["/switch", "/system", "/set", "/show", "/stats", "/save"]);
        assert_eq!(completions("/set t"), ["/set temperature", "/set top_k", "/set top_p"]);
        assert_eq!(completions("/show m"), ["/show messages"]);
        assert!(completions("hello").is_empty());
        for command in COMMANDS {
            assert!(command.names.iter().all(|name| completions(name).contains(&name.to_string())));
        }
    }

    #[test]
    fn a_message_is_shown_to_the_last_character_on_one_line() {
        let message = Message { role: Role::User, content: " a\n\"é\u{1b} ".to_string() };
        assert_eq!(as_json(&message), r#"{"role":"user","content":" a\n\"é\u001b "}"#);
    }
}
