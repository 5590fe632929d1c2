//! Answers as JSON: what `run --json` and `run --stream-json` print.

use serde_json::{Map, Value, json};

use crate::generation::{Completion, FinishReason};
use crate::sampler::{Logprobs, Rated};
use crate::tokenizer::{TokenId, Tokenizer};

pub struct Answer {
    pub completion: Completion,
    pub seed: u64,
}

impl Answer {
    pub fn to_json(&self, tokenizer: &Tokenizer) -> Map<String, Value> {
        let completion = &self.completion;
        let finish_reason = match completion.finish_reason {
            FinishReason::Stop => "stop",
            FinishReason::Length => "length",
            FinishReason::Interrupted => "interrupted",
        };
        let fields = [
            ("text", json!(completion.text)),
            ("finish_reason", json!(finish_reason)),
            ("prompt_tokens", json!(completion.prompt_tokens)),
            ("cached_tokens", json!(completion.cached_tokens)),
            ("completion_tokens", json!(completion.ids.len())),
            ("prefill_tokens_per_second", json!(completion.prefill_tokens_per_second())),
            ("decode_tokens_per_second", json!(completion.decode_tokens_per_second())),
            ("seed", json!(self.seed)),
        ];
        let mut object: Map<String, Value> =
            fields.map(|(name, value)| (name.to_string(), value)).into_iter().collect();
        if let Some(all) = &completion.logprobs {
            object.insert("logprobs".to_string(), all.iter().map(|one| logprobs(one, tokenizer)).collect());
        }
        object
    }
}

/// A token of an answer and its rivals, in the words of llama.cpp's server.
pub fn logprobs(logprobs: &Logprobs, tokenizer: &Tokenizer) -> Value {
    let mut object = rated(logprobs.chosen, tokenizer);
    let top: Vec<Value> = logprobs.top.iter().map(|&one| Value::Object(rated(one, tokenizer))).collect();
    object.insert("top_logprobs".to_string(), top.into());
    object.into()
}

/// A probability of 0 has no logarithm that JSON can write: null.
fn rated(Rated { token, logprob }: Rated, tokenizer: &Tokenizer) -> Map<String, Value> {
    let fields = [
        ("id", json!(token)),
        ("token", json!(shown(token, tokenizer))),
        ("bytes", json!(tokenizer.bytes(token))),
        ("logprob", json!(logprob)),
    ];
    fields.map(|(name, value)| (name.to_string(), value)).into_iter().collect()
}

/// What a token says; control tokens say nothing and go by their name.
fn shown(token: TokenId, tokenizer: &Tokenizer) -> String {
    match tokenizer.is_control(token) {
        true => tokenizer.piece(token).to_string(),
        false => String::from_utf8_lossy(tokenizer.bytes(token)).into_owned(),
    }
}
