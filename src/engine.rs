//! Sequences of token ids over a backend and its paged KV cache: prefill, decode, scores. No text, no device.

use std::ops::ControlFlow;

use crate::backend::Backend;
use crate::tokenizer::TokenId;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SequenceId(u32);

#[derive(Clone, Debug)]
pub struct Options {
    /// Most tokens a sequence may hold.
    pub context_tokens: usize,
    /// Most prompt tokens computed in one step.
    pub batch_tokens: usize,
}

#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The tokens do not fit the context.
    #[error("{wanted} tokens do not fit the context of {context_tokens}")]
    ContextFull { wanted: usize, context_tokens: usize },
    /// The callback broke off; the sequence holds what was computed.
    #[error("interrupted")]
    Interrupted,
    #[error(transparent)]
    Other(#[from] anyhow::Error),
}

/// What a prefill did.
#[derive(Clone, Copy, Debug)]
pub struct Prefilled {
    /// Tokens that were in the cache already.
    pub cached_tokens: usize,
    pub computed_tokens: usize,
}

pub struct Engine {}

impl Engine {
    pub fn new(_backend: Box<dyn Backend>, _options: Options) -> anyhow::Result<Engine> {
        unimplemented!()
    }
    pub fn context_tokens(&self) -> usize {
        unimplemented!()
    }
    pub fn vocab(&self) -> usize {
        unimplemented!()
    }
    pub fn new_sequence(&mut self) -> SequenceId {
        unimplemented!()
    }
    pub fn free_sequence(&mut self, _sequence: SequenceId) {
        unimplemented!()
    }
    /// The tokens a sequence holds.
    pub fn tokens(&self, _sequence: SequenceId) -> &[TokenId] {
        unimplemented!()
    }
    /// Forgets all but the first `len` tokens.
    pub fn truncate(&mut self, _sequence: SequenceId, _len: usize) {
        unimplemented!()
    }
    /// Makes the sequence hold exactly `prompt` (not empty), computing only what differs from what it holds; the logits
    /// of the last token are then in `logits()`. `on_progress(done, total)` counts the tokens to compute.
    pub fn prefill(
        &mut self,
        _sequence: SequenceId,
        _prompt: &[TokenId],
        _on_progress: &mut dyn FnMut(usize, usize) -> ControlFlow<()>,
    ) -> Result<Prefilled, Error> {
        unimplemented!()
    }
    /// Appends one token and computes the logits after it.
    pub fn decode(&mut self, _sequence: SequenceId, _token: TokenId) -> Result<&[f32], Error> {
        unimplemented!()
    }
    /// Logits (vocab) after the last prefill or decode.
    pub fn logits(&self) -> &[f32] {
        unimplemented!()
    }
    /// Appends `tokens` and gives the logits after each of them, in order: `on_logits(index, logits)`.
    pub fn score(
        &mut self,
        _sequence: SequenceId,
        _tokens: &[TokenId],
        _on_logits: &mut dyn FnMut(usize, &[f32]) -> ControlFlow<()>,
    ) -> Result<(), Error> {
        unimplemented!()
    }
}
