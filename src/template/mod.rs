//! Chat messages -> prompt text, by the model's own Jinja template.
//!
//! The template comes from the model file and is trusted with nothing: it reaches no file, and fuel bounds its steps and
//! its memory together. What people wrote is shielded before it goes in, so that it cannot turn into control tokens.

mod families;
mod json;
mod methods;
mod namespace;
mod python;
mod tags;
mod time;

use std::sync::{Arc, Mutex};

use anyhow::{Context, bail, ensure};
use chrono::NaiveDateTime;
use minijinja::value::Value;
use minijinja::{Environment, ErrorKind};

use crate::gguf::Gguf;
use crate::tokenizer::{Special, TokenId, Tokenizer};

pub use families::{missing_marker, names as family_names, source as family_source};

const KEY: &str = "tokenizer.chat_template";

/// One unit pays for one instruction or 64 bytes of data, so this is also a bound of 16 MiB. Every published template
/// gets by with a part of it.
const BASE_FUEL: u64 = 1 << 18;
/// Templates look at each message many times, some at all others for each one.
const FUEL_PER_MESSAGE: u64 = 3_000;
/// Lets a template copy what people wrote 16 times over.
const BYTES_PER_FUEL: u64 = 4;
/// Nested macro calls, each of which takes stack.
const RECURSION_LIMIT: usize = 150;
/// Of what a template says when it fails.
const MAX_WORDS_CHARS: usize = 300;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    System,
    User,
    Assistant,
}

impl Role {
    /// As templates know it.
    pub fn name(self) -> &'static str {
        match self {
            Role::System => "system",
            Role::User => "user",
            Role::Assistant => "assistant",
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    pub role: Role,
    pub content: String,
}

pub struct ChatTemplate {
    environment: Environment<'static>,
    source: String,
    bos: String,
    eos: String,
    note: Option<String>,
    fixed_time: Option<NaiveDateTime>,
}

/// A rendered conversation.
pub struct Prompt {
    /// As a person would read it.
    pub text: String,
    /// BOS included once where the model wants one; user text never holds control tokens.
    pub ids: Vec<TokenId>,
}

impl ChatTemplate {
    /// The template of the file. Without one: that of the family which the vocabulary or the model's name tells, else
    /// `None` (the caller says which on stderr; `note` holds the sentence).
    pub fn from_gguf(gguf: &Gguf, tokenizer: &Tokenizer) -> anyhow::Result<Option<ChatTemplate>> {
        if let Some(source) = gguf.str(KEY)?.filter(|source| !source.trim().is_empty()) {
            let template = ChatTemplate::from_source(source, tokenizer)
                .map_err(|error| gguf.key_error(KEY, format_args!("{error:#}")))?;
            return Ok(Some(template));
        }
        let Some((family, why)) = families::of_file(gguf, tokenizer) else { return Ok(None) };
        let source = families::source(family).expect("only families that exist are found");
        let mut template = ChatTemplate::from_source(source, tokenizer)?;
        template.note = Some(format!(
            "the file has no chat template: that of {family} is used, because {why} (--chat-template names another)"
        ));
        Ok(Some(template))
    }

    /// From a template's source, for tests and `--chat-template`.
    pub fn from_source(source: &str, tokenizer: &Tokenizer) -> anyhow::Result<ChatTemplate> {
        let environment = python::environment(source, RECURSION_LIMIT)
            .map_err(|error| anyhow::anyhow!("the chat template cannot be used: {}", described(&error)))?;
        let text_of = |id: Option<TokenId>| id.map_or("", |id| tokenizer.piece(id)).to_string();
        let template = ChatTemplate {
            environment,
            source: source.to_string(),
            bos: text_of(tokenizer.bos()),
            eos: text_of(tokenizer.eos()),
            note: None,
            fixed_time: None,
        };
        // A template that never ends is known before the first question is typed. Any other failure may depend on the
        // messages and is told when they come.
        let question = Message { role: Role::User, content: "?".into() };
        if let Err(Failure::OutOfFuel) = template.try_render(&[question], true) {
            bail!("the chat template is broken: {}", Failure::OutOfFuel);
        }
        Ok(template)
    }

    /// As its author wrote it.
    pub fn source(&self) -> &str {
        &self.source
    }

    /// Adds a sentence that the user should get.
    pub fn with_note(self, note: String) -> ChatTemplate {
        ChatTemplate { note: Some(note), ..self }
    }

    /// A sentence for the user, if the template is not the file's own.
    pub fn note(&self) -> Option<&str> {
        self.note.as_deref()
    }

    /// Makes templates that ask for the time see this one, so that a rendering can be repeated.
    pub fn fix_time(&mut self, now: NaiveDateTime) {
        self.fixed_time = Some(now);
    }

    /// Renders with the generation prompt at the end. A `raise_exception` of the template is an error with its words.
    pub fn render(&self, messages: &[Message], tokenizer: &Tokenizer) -> anyhow::Result<Prompt> {
        let shielded: Vec<Message> = messages
            .iter()
            .map(|message| Message { role: message.role, content: tokenizer.shield(&message.content) })
            .collect();
        let text = self.render_text(&shielded, true)?;
        let mut ids = tokenizer.encode(&text, Special::Parse).context("encoding the prompt")?;
        // Many templates write BOS themselves. EOS would end the answer before it begins.
        tokenizer.begin_with_bos(&mut ids);
        ensure!(!ids.is_empty(), "the chat template made an empty prompt of the conversation");
        Ok(Prompt { text: tokenizer.unshield(&text), ids })
    }

    /// What the template makes of `messages` as they are.
    pub fn render_text(&self, messages: &[Message], add_generation_prompt: bool) -> anyhow::Result<String> {
        self.try_render(messages, add_generation_prompt).map_err(|failure| match failure {
            Failure::Raised(words) => {
                let has_system = messages.iter().any(|message| message.role == Role::System);
                let advice =
                    if has_system { "; --system-in-user puts the system text into the first user turn" } else { "" };
                anyhow::anyhow!("the chat template refuses this conversation: {words}{advice}")
            }
            failure => anyhow::anyhow!("the model's chat template is broken: {failure}"),
        })
    }

    fn try_render(&self, messages: &[Message], add_generation_prompt: bool) -> Result<String, Failure> {
        let raised = Arc::new(Mutex::new(None));
        let value_of = |message: &Message| {
            Value::from_pairs([("role", message.role.name()), ("content", message.content.as_str())])
        };
        // `tools` and `documents` stay undefined: templates ask whether they are, and some take the length of a none.
        let context = Value::from_pairs([
            ("messages", messages.iter().map(value_of).collect::<Value>()),
            ("add_generation_prompt", Value::from(add_generation_prompt)),
            ("bos_token", Value::from(self.bos.as_str())),
            ("eos_token", Value::from(self.eos.as_str())),
            ("raise_exception", python::raise_exception(raised.clone())),
            ("strftime_now", time::strftime_now(self.fixed_time)),
        ]);
        let written: usize = messages.iter().map(|message| message.content.len()).sum();
        let fuel = BASE_FUEL + FUEL_PER_MESSAGE * messages.len() as u64 + written as u64 / BYTES_PER_FUEL;
        python::render(&self.environment, context, fuel).map_err(|error| {
            match raised.lock().map(|mut words| words.take()) {
                Ok(Some(words)) => Failure::Raised(one_line(&words)),
                _ if error.kind() == ErrorKind::OutOfFuel => Failure::OutOfFuel,
                _ => Failure::Other(described(&error)),
            }
        })
    }
}

/// Why a template gave no text.
#[derive(Debug, thiserror::Error)]
enum Failure {
    /// The words of its `raise_exception`.
    #[error("{0}")]
    Raised(String),
    #[error("it takes more steps or memory than any sound template needs")]
    OutOfFuel,
    #[error("{0}")]
    Other(String),
}

/// Innermost cause last.
fn described(error: &minijinja::Error) -> String {
    let chain = anyhow::Chain::new(error).map(|cause| cause.to_string());
    one_line(&chain.collect::<Vec<_>>().join(": "))
}

/// What a template says may be as long as its author likes.
fn one_line(text: &str) -> String {
    let line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    match line.char_indices().nth(MAX_WORDS_CHARS) {
        Some((cut, _)) => format!("{}…", &line[..cut]),
        None => line,
    }
}

/// Folds the system messages into the first user turn (`--system-in-user`).
pub fn fold_system(messages: &[Message]) -> Vec<Message> {
    let (system, mut others): (Vec<Message>, Vec<Message>) =
        messages.iter().cloned().partition(|message| message.role == Role::System);
    let system = system.into_iter().map(|message| message.content).collect::<Vec<_>>().join("\n\n");
    if system.is_empty() {
        return others;
    }
    match others.iter_mut().find(|message| message.role == Role::User) {
        Some(first) => first.content = format!("{system}\n\n{}", first.content),
        None => others.insert(0, Message { role: Role::User, content: system }),
    }
    others
}

#[cfg(test)]
mod tests;
