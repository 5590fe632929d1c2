//! Conversations that are saved to files and go on from them.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use anyhow::{Context, bail};

use super::ChatArgs;
use super::conversation::Conversation;
use super::session::Session;
use crate::cli::args::ModelArgs;
use crate::cli::load::Loaded;
use crate::cli::session::{self, SessionArgs};
use crate::cli::terminal::Terminal;
use crate::engine::About;

/// What a conversation must know to be saved.
pub struct Saving {
    about: About,
    /// It is saved when the chat is left.
    pub is_wanted: bool,
    /// Ctrl-C came during the last answer.
    pub is_interrupted: bool,
    stdin_is_script: bool,
    /// As it stands in the file of `--session`.
    kept: Option<Conversation>,
}

impl Saving {
    pub fn new(args: &ChatArgs, loaded: &Loaded) -> Saving {
        Saving {
            about: session::about(&args.model, loaded),
            is_wanted: args.session.to_write().is_some(),
            is_interrupted: false,
            stdin_is_script: false,
            kept: None,
        }
    }

    /// From here on another model speaks.
    pub fn set_model(&mut self, args: &ModelArgs, loaded: &Loaded) {
        self.about = session::about(args, loaded);
        self.kept = None;
    }
}

impl Session {
    /// Goes on with the conversation that `--session` names, if it is there. A `--system` counts.
    pub fn resume(&mut self, args: &ChatArgs, terminal: &Terminal) -> anyhow::Result<()> {
        self.saving.stdin_is_script = !terminal.stdin_is_terminal();
        let Some(path) = &args.session.session else { return Ok(()) };
        if args.session.open(&self.saving.about, terminal)?.is_none() {
            return Ok(());
        }
        self.load(path, terminal)?;
        self.saving.kept = Some(self.conversation.clone());
        if let Some(system) = &args.system.system {
            self.set_system(Some(system)).context("--system")?;
        }
        Ok(())
    }

    /// Saves to the file of `--session`, unless it holds the same conversation already.
    pub fn keep(&mut self, args: &SessionArgs, terminal: &Terminal) -> anyhow::Result<()> {
        let Some(path) = args.to_write() else { return Ok(()) };
        if self.saving.kept.as_ref() == Some(&self.conversation) {
            return Ok(());
        }
        self.save(path, terminal)
    }

    pub fn save(&self, path: &Path, terminal: &Terminal) -> anyhow::Result<()> {
        let about = About { notes: self.conversation.to_notes(), ..self.saving.about.clone() };
        session::save(&self.loaded.engine, self.sequence, path, &about, terminal)
    }

    /// Replaces the conversation by a saved one. If that fails, it stays.
    pub fn load(&mut self, path: &Path, terminal: &Terminal) -> anyhow::Result<()> {
        if is_model(path) {
            bail!("{} is a model, not a session: /model loads it and keeps the conversation", path.display());
        }
        let saved = session::open(path, &self.saving.about)?;
        let mut saved =
            saved.with_context(|| format!("{}: there is no session (a model is loaded by /model)", path.display()))?;
        let vocab = self.loaded.texts.tokenizer.vocab();
        let conversation = Conversation::from_notes(&saved.head.notes, vocab);
        let conversation =
            conversation.with_context(|| format!("{} holds no conversation to go on with", path.display()))?;
        session::restore(&mut saved, &mut self.loaded.engine, self.sequence, terminal)?;
        (self.conversation, self.last) = (conversation, None);
        Ok(())
    }

    /// In a script an answer that Ctrl-C ended is the last one.
    pub fn is_to_end(&self) -> bool {
        self.saving.is_interrupted && self.saving.stdin_is_script
    }
}

fn is_model(path: &Path) -> bool {
    let mut magic = [0; 4];
    path.is_file() && File::open(path).and_then(|mut file| file.read_exact(&mut magic)).is_ok() && &magic == b"GGUF"
}
