//! Tokenizer + engine + sampler -> text events: the loop behind every command that answers.

use std::ops::ControlFlow;

use crate::engine::{Engine, SequenceId};
use crate::sampler::Sampler;
use crate::tokenizer::{TokenId, Tokenizer};

pub struct Request<'a> {
    /// Ids the sequence shall hold; what it holds already is not computed again.
    pub prompt: &'a [TokenId],
    /// `None`: until the end of text or of the context.
    pub max_tokens: Option<usize>,
    /// The answer ends before the first of these.
    pub stop: &'a [String],
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FinishReason {
    /// An end-of-generation token or a stop string.
    Stop,
    /// `max_tokens` or the context ran out.
    Length,
    /// The caller broke off.
    Interrupted,
}

pub enum Event<'a> {
    /// `done` of `total` prompt tokens are computed.
    Prefill { done: usize, total: usize },
    /// Complete UTF-8, never a part of a stop string.
    Text(&'a str),
}

pub struct Completion {
    pub text: String,
    /// Ids of the answer, without the end token.
    pub ids: Vec<TokenId>,
    pub finish_reason: FinishReason,
    /// True when the context, not `max_tokens`, ended the answer.
    pub context_full: bool,
    pub prompt_tokens: usize,
    pub cached_tokens: usize,
    pub prefill_seconds: f64,
    pub decode_seconds: f64,
}

/// Answers `request` in `sequence`. `on_event` may break off at any event.
pub fn generate(
    _engine: &mut Engine,
    _sequence: SequenceId,
    _tokenizer: &Tokenizer,
    _sampler: &mut Sampler,
    _request: &Request,
    _on_event: &mut dyn FnMut(Event) -> ControlFlow<()>,
) -> anyhow::Result<Completion> {
    unimplemented!()
}
