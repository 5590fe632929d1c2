//! Logits -> the next token: a chain of stages in llama.cpp's order, names and defaults.

use crate::tokenizer::TokenId;

#[derive(Clone, Debug, PartialEq)]
pub struct Params {
    pub temperature: f32,
    /// 0 or less: off.
    pub top_k: i64,
    pub top_p: f32,
    pub min_p: f32,
    pub repeat_penalty: f32,
    pub presence_penalty: f32,
    pub frequency_penalty: f32,
    /// 0: off; -1: the whole context.
    pub repeat_last_n: i64,
    /// `None`: random.
    pub seed: Option<u64>,
    /// Ids that may never come (`--ignore-eos`: all of the end-of-generation set).
    pub banned: Vec<TokenId>,
}

pub struct Sampler {}

/// A logit that is NaN or infinite.
#[derive(Debug, thiserror::Error)]
#[error("the model gave a non-finite logit ({value}) for token {token}: its weights are damaged or overflow")]
pub struct NonFinite {
    pub token: TokenId,
    pub value: f32,
}

impl Sampler {
    pub fn new(_params: Params) -> Sampler {
        unimplemented!()
    }
    /// The seed in use; the same seed gives the same text.
    pub fn seed(&self) -> u64 {
        unimplemented!()
    }
    /// Tells the penalties of a token of the prompt or of the answer.
    pub fn accept(&mut self, _token: TokenId) {
        unimplemented!()
    }
    /// `logits` (vocab) f32 -> a token. Does not `accept` it.
    pub fn sample(&mut self, _logits: &[f32]) -> Result<TokenId, NonFinite> {
        unimplemented!()
    }
}
