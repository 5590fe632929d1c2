//! Chat messages -> prompt text, by the model's own Jinja template.

use crate::gguf::Gguf;
use crate::tokenizer::{TokenId, Tokenizer};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    System,
    User,
    Assistant,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    pub role: Role,
    pub content: String,
}

pub struct ChatTemplate {}

/// A rendered conversation.
pub struct Prompt {
    /// As a person would read it.
    pub text: String,
    /// BOS included once where the model wants one; user text never holds control tokens.
    pub ids: Vec<TokenId>,
}

impl ChatTemplate {
    /// The template of the file. Without one: ChatML if its markers are single tokens of the vocabulary, else `None`
    /// (the caller says which on stderr; `note` holds the sentence).
    pub fn from_gguf(_gguf: &Gguf, _tokenizer: &Tokenizer) -> anyhow::Result<Option<ChatTemplate>> {
        unimplemented!()
    }
    /// From a template's source, for tests and `--chat-template`.
    pub fn from_source(_source: &str, _tokenizer: &Tokenizer) -> anyhow::Result<ChatTemplate> {
        unimplemented!()
    }
    /// A sentence for the user, if the template is not the file's own.
    pub fn note(&self) -> Option<&str> {
        unimplemented!()
    }
    /// Renders with the generation prompt at the end. A `raise_exception` of the template is an error with its words.
    pub fn render(&self, _messages: &[Message], _tokenizer: &Tokenizer) -> anyhow::Result<Prompt> {
        unimplemented!()
    }
}

/// Folds the system messages into the first user turn (`--system-in-user`).
pub fn fold_system(messages: &[Message]) -> Vec<Message> {
    messages.to_vec()
}
