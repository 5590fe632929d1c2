//! The line editor of the terminal: prompt, keys, history file.

use std::env;
use std::fs::DirBuilder;
use std::io::{self, ErrorKind};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rustyline::config::Behavior;
use rustyline::error::ReadlineError;
use rustyline::history::DefaultHistory;
use rustyline::{
    Cmd, CompletionType, ConditionalEventHandler, Config, Editor, Event, EventContext, EventHandler, KeyEvent,
    RepeatCount,
};

use super::completion::CommandCompleter;
use crate::cli::terminal::Terminal;

/// What a message is typed behind.
pub const PROMPT: &str = ">>> ";

pub enum Line {
    /// What was read up to Enter; a paste may hold several lines.
    Text(String),
    /// Ctrl-G: what is typed so far shall go to another editor.
    Edit(String),
    Interrupted,
    End,
}

pub struct LineEditor {
    editor: Editor<CommandCompleter, DefaultHistory>,
    keeps_history: bool,
    /// `None` where it is not wanted, and once it cannot be used: one warning is enough.
    history: Option<PathBuf>,
    edit_is_wanted: Arc<AtomicBool>,
}

impl LineEditor {
    pub fn open(keeps_history: bool, terminal: &Terminal) -> anyhow::Result<LineEditor> {
        // Standard output is for answers: if it goes elsewhere, the prompt must not follow.
        let behavior = if terminal.stdout_is_terminal() { Behavior::Stdio } else { Behavior::PreferTerm };
        let config = Config::builder().behavior(behavior).history_ignore_space(true);
        let config = config.completion_type(CompletionType::List).build();
        let mut editor = LineEditor {
            editor: Editor::with_config(config)?,
            keeps_history: false,
            history: None,
            edit_is_wanted: Arc::default(),
        };
        editor.editor.set_helper(Some(CommandCompleter::new()));
        let edit = EditKey(editor.edit_is_wanted.clone());
        editor.editor.bind_sequence(KeyEvent::ctrl('G'), EventHandler::Conditional(Box::new(edit)));
        editor.keep_history(keeps_history, terminal);
        Ok(editor)
    }

    /// Reads up to Enter. `initial` stands in the line at first.
    pub fn read(&mut self, first: bool, initial: &str, terminal: &Terminal) -> anyhow::Result<Line> {
        loop {
            let prompt = if first { PROMPT } else { "... " };
            let read = self.editor.readline_with_initial(prompt, (initial, ""));
            let wants_edit = self.edit_is_wanted.swap(false, Ordering::SeqCst);
            return match read {
                // Enter and line breaks of a paste are carriage returns on a terminal.
                Ok(line) => {
                    let line = line.replace("\r\n", "\n").replace('\r', "\n");
                    if wants_edit {
                        // It comes back behind the next prompt.
                        terminal.take_back_input(prompt, &line);
                        return Ok(Line::Edit(line));
                    }
                    Ok(Line::Text(line))
                }
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

    /// The names that Tab knows for `/switch`.
    pub fn set_branches(&mut self, names: &[&str]) {
        if let Some(completer) = self.editor.helper_mut() {
            completer.branches = names.iter().map(|name| name.to_string()).collect();
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

    /// Whether messages from here on go to the history file.
    pub fn keep_history(&mut self, keeps: bool, terminal: &Terminal) {
        if std::mem::replace(&mut self.keeps_history, keeps) == keeps {
            return;
        }
        self.history = history_path().filter(|_| keeps);
        let Some(path) = &self.history else { return };
        // A link to /dev/null says that none is wanted; other devices never end.
        if path.metadata().is_ok_and(|about| !about.is_file() && !about.is_dir()) {
            self.history = None;
            return;
        }
        // What was said while nothing was kept would be appended with the next message.
        match self.editor.clear_history().and_then(|()| self.editor.load_history(path)) {
            Ok(()) => {}
            Err(ReadlineError::Io(error)) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => {
                terminal.warn(&format!("{}: the history cannot be read: {error}", path.display()));
                self.history = None;
            }
        }
    }
}

/// Ends the line as Enter does, and notes why.
struct EditKey(Arc<AtomicBool>);

impl ConditionalEventHandler for EditKey {
    fn handle(&self, _: &Event, _: RepeatCount, _: bool, _: &EventContext) -> Option<Cmd> {
        self.0.store(true, Ordering::SeqCst);
        Some(Cmd::AcceptLine)
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
