//! Text <-> token ids: the `tokenizers` crate set up from GGUF metadata alone.

pub mod text;

use crate::gguf::Gguf;

pub type TokenId = u32;

/// Whether the texts of control tokens inside a string become those tokens or stay text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Special {
    /// What a user typed: `<|im_end|>` is ten characters.
    AsText,
    /// What a template wrote: `<|im_end|>` is one token.
    Parse,
}

pub struct Tokenizer {}

impl Tokenizer {
    pub fn from_gguf(_gguf: &Gguf) -> anyhow::Result<Tokenizer> {
        unimplemented!()
    }
    /// Sentences the user should see (for example a missing `tokenizer.ggml.pre`).
    pub fn warnings(&self) -> &[String] {
        unimplemented!()
    }
    pub fn vocab(&self) -> usize {
        unimplemented!()
    }
    /// Ids of `text`, without BOS or EOS.
    pub fn encode(&self, _text: &str, _special: Special) -> anyhow::Result<Vec<TokenId>> {
        unimplemented!()
    }
    /// `encode`, with the BOS and EOS that the model asks for; never a second BOS.
    pub fn encode_with_bos(&self, _text: &str, _special: Special) -> anyhow::Result<Vec<TokenId>> {
        unimplemented!()
    }
    /// `text` with every control token's text broken by a mark that `encode(.., Parse)` takes out again, so that user
    /// text survives a template without becoming control tokens.
    pub fn shield(&self, _text: &str) -> String {
        unimplemented!()
    }
    /// `text` without the marks of `shield`: what a person should see.
    pub fn unshield(&self, _text: &str) -> String {
        unimplemented!()
    }
    pub fn bos(&self) -> Option<TokenId> {
        unimplemented!()
    }
    pub fn eos(&self) -> Option<TokenId> {
        unimplemented!()
    }
    pub fn add_bos(&self) -> bool {
        unimplemented!()
    }
    pub fn is_end_of_generation(&self, _id: TokenId) -> bool {
        unimplemented!()
    }
    pub fn end_of_generation(&self) -> &[TokenId] {
        unimplemented!()
    }
    pub fn is_control(&self, _id: TokenId) -> bool {
        unimplemented!()
    }
    /// The vocabulary entry as stored, e.g. `Ġthe`, `▁the`, `<0x0A>`; empty for ids outside the vocabulary.
    pub fn piece(&self, _id: TokenId) -> &str {
        unimplemented!()
    }
    /// The bytes a token stands for in text; empty for control tokens and ids outside the vocabulary.
    pub fn bytes(&self, _id: TokenId) -> &[u8] {
        unimplemented!()
    }
    /// Text of `ids`: control tokens leave nothing, invalid UTF-8 becomes U+FFFD.
    pub fn decode(&self, _ids: &[TokenId]) -> String {
        unimplemented!()
    }
}
