//! Conversations that are saved to files and go on from them.

use std::path::Path;

use anyhow::{Context, bail, ensure};
use serde_json::{Value, json};

use super::ChatArgs;
use super::session::Session;
use crate::cli::load::Loaded;
use crate::cli::session::{self, SessionArgs};
use crate::cli::terminal::Terminal;
use crate::engine::About;
use crate::template::{Message, Role};
use crate::tokenizer::TokenId;

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

/// The words of a conversation.
#[derive(PartialEq)]
struct Conversation {
    messages: Vec<Message>,
    spoken: Vec<TokenId>,
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
        self.saving.kept = Some(self.conversation());
        if let Some(system) = &args.system.system {
            self.set_system(system).context("--system")?;
        }
        Ok(())
    }

    /// Saves to the file of `--session`, unless it holds the same conversation already.
    pub fn keep(&mut self, args: &SessionArgs, terminal: &Terminal) -> anyhow::Result<()> {
        let Some(path) = args.to_write() else { return Ok(()) };
        if self.saving.kept.as_ref() == Some(&self.conversation()) {
            return Ok(());
        }
        self.save(path, terminal)
    }

    pub fn save(&self, path: &Path, terminal: &Terminal) -> anyhow::Result<()> {
        let about = About { notes: self.conversation().to_notes(), ..self.saving.about.clone() };
        session::save(&self.loaded.engine, self.sequence, path, &about, terminal)
    }

    /// Replaces the conversation by a saved one. If that fails, it stays.
    pub fn load(&mut self, path: &Path, terminal: &Terminal) -> anyhow::Result<()> {
        let saved = session::open(path, &self.saving.about)?;
        let mut saved = saved.with_context(|| format!("{}: there is no session", path.display()))?;
        let vocab = self.loaded.texts.tokenizer.vocab();
        let conversation = Conversation::from_notes(&saved.head.notes, vocab);
        let Conversation { messages, spoken } =
            conversation.with_context(|| format!("{} holds no conversation to go on with", path.display()))?;
        session::restore(&mut saved, &mut self.loaded.engine, self.sequence, terminal)?;
        (self.messages, self.spoken, self.last) = (messages, spoken, None);
        Ok(())
    }

    /// In a script an answer that Ctrl-C ended is the last one.
    pub fn is_to_end(&self) -> bool {
        self.saving.is_interrupted && self.saving.stdin_is_script
    }

    fn conversation(&self) -> Conversation {
        Conversation { messages: self.messages.clone(), spoken: self.spoken.clone() }
    }
}

impl Conversation {
    fn to_notes(&self) -> Vec<u8> {
        let message = |message: &Message| json!([message.role.name(), message.content]);
        let messages: Vec<Value> = self.messages.iter().map(message).collect();
        json!({ "messages": messages, "spoken": self.spoken }).to_string().into_bytes()
    }

    fn from_notes(notes: &[u8], vocab: usize) -> anyhow::Result<Conversation> {
        ensure!(!notes.is_empty(), "it was saved by `run`");
        let notes: Value = serde_json::from_slice(notes)?;
        let list = |name: &str| notes[name].as_array().with_context(|| format!("it has no {name}"));
        let message = |value: &Value| {
            let role = [Role::System, Role::User, Role::Assistant].into_iter().find(|role| value[0] == role.name());
            let content = value[1].as_str().map(str::to_string);
            role.zip(content).map(|(role, content)| Message { role, content })
        };
        let messages = list("messages")?.iter().map(message).collect::<Option<Vec<_>>>();
        let messages = messages.context("a message of it has no role or no text")?;
        let id = |value: &Value| value.as_u64().filter(|&id| id < vocab as u64).map(|id| id as TokenId);
        let spoken = list("spoken")?.iter().map(id).collect::<Option<Vec<_>>>();
        let spoken = spoken.context("a token of it is not in the vocabulary")?;
        let talk = messages.iter().skip_while(|message| message.role == Role::System);
        let in_turn = [Role::User, Role::Assistant].into_iter().cycle();
        if !talk.clone().zip(in_turn).all(|(message, role)| message.role == role) || talk.count() % 2 == 1 {
            bail!("its messages are not in turn");
        }
        Ok(Conversation { messages, spoken })
    }
}
