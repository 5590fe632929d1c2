//! The line editor of the terminal: prompt, history file, completion of commands.

use std::env;
use std::fs::DirBuilder;
use std::io::{self, ErrorKind};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use rustyline::completion::Completer;
use rustyline::config::Behavior;
use rustyline::error::ReadlineError;
use rustyline::highlight::Highlighter;
use rustyline::hint::Hinter;
use rustyline::history::DefaultHistory;
use rustyline::validate::Validator;
use rustyline::{Config, Context, Editor, Helper};

use super::commands;
use crate::cli::terminal::Terminal;

pub enum Line {
    /// What was read up to Enter; a paste may hold several lines.
    Text(String),
    Interrupted,
    End,
}

pub struct LineEditor {
    editor: Editor<CommandCompleter, DefaultHistory>,
    /// `None` where it is not wanted, and once it cannot be used: one warning is enough.
    history: Option<PathBuf>,
}

impl LineEditor {
    pub fn open(keep_history: bool, terminal: &Terminal) -> anyhow::Result<LineEditor> {
        // Standard output is for answers: if it goes elsewhere, the prompt must not follow.
        let behavior = if terminal.stdout_is_terminal() { Behavior::Stdio } else { Behavior::PreferTerm };
        let config = Config::builder().behavior(behavior).history_ignore_space(true).build();
        let history = history_path().filter(|_| keep_history);
        let mut editor = LineEditor { editor: Editor::with_config(config)?, history };
        editor.editor.set_helper(Some(CommandCompleter));
        editor.load_history(terminal);
        Ok(editor)
    }

    pub fn read(&mut self, first: bool, terminal: &Terminal) -> anyhow::Result<Line> {
        loop {
            return match self.editor.readline(if first { ">>> " } else { "... " }) {
                // Enter and line breaks of a paste are carriage returns on a terminal.
                Ok(line) => Ok(Line::Text(line.replace("\r\n", "\n").replace('\r', "\n"))),
                Err(ReadlineError::Interrupted) => Ok(Line::Interrupted),
                Err(ReadlineError::Eof) => Ok(Line::End),
                Err(ReadlineError::Signal(_)) => continue,
                Err(ReadlineError::Io(error)) if error.kind() == ErrorKind::InvalidData => {
                    terminal.warn("what was typed is not UTF-8 and is left out");
                    continue;
                }
                Err(error) => Err(anyhow::Error::new(error).context("cannot read from the terminal")),
            };
        }
    }

    /// Writes each message at once, so that nothing is lost with the session.
    pub fn remember(&mut self, message: &str, terminal: &Terminal) {
        let added = self.editor.add_history_entry(message);
        let Some(path) = &self.history else { return };
        if let Err(error) = added.and_then(|_| {
            create_private_folder(path)?;
            self.editor.append_history(path)
        }) {
            terminal.warn(&format!("{}: the history cannot be written: {error}", path.display()));
            self.history = None;
        }
    }

    fn load_history(&mut self, terminal: &Terminal) {
        let Some(path) = &self.history else { return };
        match self.editor.load_history(path) {
            Ok(()) => {}
            Err(ReadlineError::Io(error)) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => {
                terminal.warn(&format!("{}: the history cannot be read: {error}", path.display()));
                self.history = None;
            }
        }
    }
}

fn history_path() -> Option<PathBuf> {
    let absolute = |name| env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let state = absolute("XDG_STATE_HOME").or_else(|| Some(absolute("HOME")?.join(".local/state")))?;
    Some(state.join("sayfa/history"))
}

/// The editor writes the file itself for the user alone.
fn create_private_folder(file: &Path) -> io::Result<()> {
    match file.parent() {
        Some(folder) => DirBuilder::new().recursive(true).mode(0o700).create(folder),
        None => Ok(()),
    }
}

struct CommandCompleter;

impl Helper for CommandCompleter {}
impl Highlighter for CommandCompleter {}
impl Validator for CommandCompleter {}
impl Hinter for CommandCompleter {
    type Hint = String;
}

impl Completer for CommandCompleter {
    type Candidate = String;

    /// The whole line up to the cursor is the word: a command stands at its start.
    fn complete(&self, line: &str, cursor: usize, _: &Context) -> rustyline::Result<(usize, Vec<String>)> {
        Ok((0, commands::completions(&line[..cursor])))
    }
}
