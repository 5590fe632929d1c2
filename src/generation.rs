//! Tokenizer + engine + sampler -> text events: the loop behind every command that answers.

mod stop;

use std::ops::ControlFlow;
use std::time::Instant;

use anyhow::Context;

use crate::constraint::Constraint;
use crate::engine::{Best, Engine, Error, Notice, Prefilled, SequenceId};
use crate::sampler::{Logprobs, Sampler};
use crate::tokenizer::text::TextStream;
use crate::tokenizer::{TokenId, Tokenizer};
use stop::StopFilter;

pub use stop::overlap;

pub struct Request<'a> {
    /// Ids the sequence shall hold; what it holds already is not computed again.
    pub prompt: &'a [TokenId],
    /// `None`: until the end of text or of the context.
    pub max_tokens: Option<usize>,
    /// The answer ends before the first of these to be complete.
    pub stop: &'a [String],
    /// So many of the likeliest tokens are told for each one of the answer.
    pub logprobs: Option<usize>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FinishReason {
    /// An end-of-generation token, a stop string, or a constraint that takes nothing more.
    Stop,
    /// `max_tokens` or the context ran out.
    Length,
    /// The caller broke off.
    Interrupted,
}

pub enum Event<'a> {
    /// `done` of `total` prompt tokens are computed.
    Prefill { done: usize, total: usize },
    /// A token was chosen, where `logprobs` were asked for; its text comes next.
    Chosen(&'a Logprobs),
    /// Complete UTF-8, never a part of a stop string. Comes once a token, so it is empty while text is held back.
    Text(&'a str),
    /// Old tokens were forgotten to make room.
    Notice(Notice),
}

#[derive(Debug)]
pub struct Completion {
    pub text: String,
    /// Ids of the answer, without the end token.
    pub ids: Vec<TokenId>,
    /// Of each token of the answer, if they were asked for.
    pub logprobs: Option<Vec<Logprobs>>,
    pub finish_reason: FinishReason,
    /// True when the context, not `max_tokens`, ended the answer. Unless the engine forgets old tokens, prompt and answer
    /// together never exceed it.
    pub context_full: bool,
    pub prompt_tokens: usize,
    pub cached_tokens: usize,
    /// Decode steps taken: the prefill gave the first token, and the last one is not always computed.
    pub decode_steps: usize,
    pub prefill_seconds: f64,
    pub decode_seconds: f64,
}

impl Completion {
    /// 0 if nothing had to be computed.
    pub fn prefill_tokens_per_second(&self) -> f64 {
        rate(self.prompt_tokens - self.cached_tokens, self.prefill_seconds)
    }

    /// 0 if the prefill gave all there is.
    pub fn decode_tokens_per_second(&self) -> f64 {
        rate(self.decode_steps, self.decode_seconds)
    }
}

fn rate(tokens: usize, seconds: f64) -> f64 {
    if tokens == 0 { 0.0 } else { tokens as f64 / seconds.max(1e-9) }
}

/// Answers `request` in `sequence`. `on_event` may break off at any event, except that a notice only tells.
///
/// The sampler's penalties see the prompt and the answer of this call and nothing from before.
pub fn generate(
    engine: &mut Engine,
    sequence: SequenceId,
    tokenizer: &Tokenizer,
    sampler: &mut Sampler,
    request: &Request,
    on_event: &mut dyn FnMut(Event) -> ControlFlow<()>,
) -> anyhow::Result<Completion> {
    let mut completion = Completion {
        text: String::new(),
        ids: Vec::new(),
        logprobs: request.logprobs.map(|_| Vec::new()),
        finish_reason: FinishReason::Interrupted,
        context_full: false,
        prompt_tokens: request.prompt.len(),
        cached_tokens: 0,
        decode_steps: 0,
        prefill_seconds: 0.0,
        decode_seconds: 0.0,
    };
    let start = Instant::now();
    let prefilled = read(engine, sequence, request.prompt, &mut |done, total| on_event(Event::Prefill { done, total }));
    completion.prefill_seconds = start.elapsed().as_secs_f64();
    tell_notices(engine, on_event);
    match prefilled {
        Ok(prefilled) => completion.cached_tokens = prefilled.cached_tokens,
        Err(Error::Interrupted) => return Ok(completion),
        Err(error) => return Err(error).context("the prompt could not be read"),
    }
    sampler.forget();
    request.prompt.iter().for_each(|&token| sampler.accept(token));
    if let Some(constraint) = &mut sampler.constraint {
        constraint.start().context(CONSTRAINT)?;
    }

    let start = Instant::now();
    let max_tokens = request.max_tokens.unwrap_or(usize::MAX);
    let stops_when_full = engine.evictable_tokens().is_none();
    let mut stream = TextStream::default();
    let mut filter = StopFilter::new(request.stop);
    // The newest token of the answer, until it is computed: the last one never needs to be.
    let mut pending = None;
    // What the last step found where no logits were asked for.
    let mut best = None;
    completion.finish_reason = loop {
        if sampler.constraint.as_ref().is_some_and(Constraint::is_complete) {
            break FinishReason::Stop;
        }
        if completion.ids.len() >= max_tokens {
            break FinishReason::Length;
        }
        let said = completion.prompt_tokens + completion.ids.len();
        if stops_when_full && said >= engine.context_tokens() {
            completion.context_full = true;
            break FinishReason::Length;
        }
        if let Some(token) = pending.take() {
            let decoded = match sampler.wants_best() && request.logprobs.is_none() {
                true => engine.decode_best(sequence, token).map(Some),
                false => engine.decode(sequence, token).map(|_| None),
            };
            match decoded {
                Ok(found) => {
                    best = found;
                    completion.decode_steps += 1;
                }
                // All that is held shall be kept.
                Err(Error::ContextFull { .. }) => {
                    completion.context_full = true;
                    break FinishReason::Length;
                }
                Err(error) => {
                    let broke_off = format!("the answer broke off after {said} tokens of prompt and answer");
                    return Err(error).context(broke_off);
                }
            }
            tell_notices(engine, on_event);
        }
        let chosen = match best.take() {
            Some(Best { token, is_finite }) => sampler.take_best(token, is_finite),
            None => sampler.sample(engine.logits()),
        };
        let token = chosen.map_err(|error| error.seen(origin(engine, sequence)))?;
        if tokenizer.is_end_of_generation(token) {
            break FinishReason::Stop;
        }
        sampler.accept(token);
        if let Some(constraint) = &mut sampler.constraint {
            constraint.accept(token).context(CONSTRAINT)?;
        }
        completion.ids.push(token);
        pending = Some(token);
        if let Some(k) = request.logprobs {
            let logprobs = Logprobs::new(engine.logits(), token, k);
            // Its text follows, and the answer can be broken off there.
            let _ = on_event(Event::Chosen(&logprobs));
            completion.logprobs.get_or_insert_default().push(logprobs);
        }
        // Control tokens have no bytes: they are never shown.
        let ready = filter.push(&stream.push(tokenizer.bytes(token)));
        completion.text.push_str(&ready);
        if on_event(Event::Text(&ready)).is_break() {
            break FinishReason::Interrupted;
        }
        if filter.is_complete() {
            break FinishReason::Stop;
        }
    };
    completion.decode_seconds = start.elapsed().as_secs_f64();

    // An answer that was cut may have been cut inside a character: that is left out, not shown as a broken one.
    let unfinished = if completion.finish_reason == FinishReason::Stop { stream.finish() } else { String::new() };
    let mut rest = filter.push(&unfinished);
    rest += &filter.finish();
    if !rest.is_empty() {
        completion.text.push_str(&rest);
        // The answer is over: there is nothing left to break off.
        let _ = on_event(Event::Text(&rest));
    }
    Ok(completion)
}

/// Where the numbers went wrong, for people.
fn origin(engine: &mut Engine, sequence: SequenceId) -> String {
    match engine.first_non_finite(sequence) {
        Some((stage, layer)) => format!("{} of layer {layer}", stage.name()),
        None => "the last norm or the output head".to_string(),
    }
}

/// Begins what is said of a constraint that fails on the way.
const CONSTRAINT: &str = "the answer cannot follow its constraint";

fn tell_notices(engine: &mut Engine, on_event: &mut dyn FnMut(Event) -> ControlFlow<()>) {
    for notice in engine.take_notices() {
        let _ = on_event(Event::Notice(notice));
    }
}

/// `Engine::prefill`, also for a prompt beyond the context where the engine forgets old tokens: what the sequence holds
/// of it stays, and the rest is read in steps that each find whole blocks to forget.
fn read(
    engine: &mut Engine,
    sequence: SequenceId,
    prompt: &[TokenId],
    on_progress: &mut dyn FnMut(usize, usize) -> ControlFlow<()>,
) -> Result<Prefilled, Error> {
    let context_tokens = engine.context_tokens();
    let evictable = engine.evictable_tokens().unwrap_or(0);
    if prompt.len() <= context_tokens || evictable == 0 {
        return engine.prefill(sequence, prompt, on_progress);
    }
    let held = engine.tokens(sequence);
    let common = held.iter().zip(prompt).take_while(|(held, wanted)| held == wanted).count();
    engine.truncate(sequence, common.min(prompt.len() - 1));
    let cached_tokens = engine.tokens(sequence).len();
    let total = prompt.len() - cached_tokens;
    let mut end = cached_tokens;
    while end < prompt.len() {
        let room = context_tokens - engine.held_tokens(sequence);
        end = prompt.len().min(end + if room > 0 { room } else { evictable.div_ceil(2) });
        let before = engine.tokens(sequence).len() - cached_tokens;
        engine.prefill(sequence, &prompt[..end], &mut |done, _| on_progress(before + done, total))?;
    }
    Ok(Prefilled { cached_tokens, computed_tokens: total })
}

/// `fresh`, but with the ids of `spoken` as far as both stand for the same text.
///
/// A conversation rendered anew tokenizes earlier replies anew, and a model does not always write a word with the ids
/// the tokenizer would choose. `spoken` is the last prompt with the reply as it was generated: with its ids kept, the
/// sequence in the engine is a prefix of the next prompt, and nothing that was said is computed twice.
pub fn keep_spoken_ids(spoken: &[TokenId], fresh: &[TokenId], tokenizer: &Tokenizer) -> Vec<TokenId> {
    keep_ids(spoken, fresh, |id| {
        if tokenizer.is_control(id) {
            // Equal to itself only, never to a text that looks like it.
            return vec![u32::from(u8::MAX) + 1 + id];
        }
        tokenizer.bytes(id).iter().map(|&byte| u32::from(byte)).collect()
    })
}

/// `units` gives the text of an id: bytes, and numbers above 255 for what is no text.
fn keep_ids(spoken: &[TokenId], fresh: &[TokenId], units: impl Fn(TokenId) -> Vec<u32>) -> Vec<TokenId> {
    // The text of `spoken[..kept]` and of `fresh[..dropped]`; the shorter one takes the next step.
    let (mut spoken_text, mut fresh_text) = (Vec::new(), Vec::new());
    let (mut kept, mut dropped, mut compared) = (0, 0, 0);
    let mut common = (0, 0);
    loop {
        if spoken_text.len() == fresh_text.len() {
            common = (kept, dropped);
        }
        if spoken_text.len() <= fresh_text.len() {
            let Some(&id) = spoken.get(kept) else { break };
            spoken_text.extend(units(id));
            kept += 1;
        } else {
            let Some(&id) = fresh.get(dropped) else { break };
            fresh_text.extend(units(id));
            dropped += 1;
        }
        let both = spoken_text.len().min(fresh_text.len());
        if spoken_text[compared..both] != fresh_text[compared..both] {
            break;
        }
        compared = both;
    }
    [&spoken[..common.0], &fresh[common.1..]].concat()
}

#[cfg(test)]
mod tests;
