//! Tokenizer + engine + sampler -> text events: the loop behind every command that answers.

use std::ops::ControlFlow;
use std::time::Instant;

use anyhow::Context;

use crate::engine::{Engine, Error, Notice, Prefilled, SequenceId};
use crate::sampler::Sampler;
use crate::tokenizer::text::TextStream;
use crate::tokenizer::{TokenId, Tokenizer};

pub struct Request<'a> {
    /// Ids the sequence shall hold; what it holds already is not computed again.
    pub prompt: &'a [TokenId],
    /// `None`: until the end of text or of the context.
    pub max_tokens: Option<usize>,
    /// The answer ends before the first of these to be complete.
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

    let start = Instant::now();
    let max_tokens = request.max_tokens.unwrap_or(usize::MAX);
    let stops_when_full = engine.evictable_tokens().is_none();
    let mut stream = TextStream::default();
    let mut filter = StopFilter::new(request.stop);
    // The newest token of the answer, until it is computed: the last one never needs to be.
    let mut pending = None;
    completion.finish_reason = loop {
        if completion.ids.len() >= max_tokens {
            break FinishReason::Length;
        }
        let said = completion.prompt_tokens + completion.ids.len();
        if stops_when_full && said >= engine.context_tokens() {
            completion.context_full = true;
            break FinishReason::Length;
        }
        if let Some(token) = pending.take() {
            match engine.decode(sequence, token) {
                Ok(_) => completion.decode_steps += 1,
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
        let token = sampler.sample(engine.logits())?;
        if tokenizer.is_end_of_generation(token) {
            break FinishReason::Stop;
        }
        sampler.accept(token);
        completion.ids.push(token);
        pending = Some(token);
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

/// Finds the first stop string to be complete in a stream of text, wherever the pieces are cut, and holds back what may
/// become one.
struct StopFilter<'a> {
    stop: &'a [String],
    /// A proper prefix of a stop string.
    held: String,
    complete: bool,
}

impl<'a> StopFilter<'a> {
    fn new(stop: &'a [String]) -> StopFilter<'a> {
        StopFilter { stop, held: String::new(), complete: false }
    }

    /// The text that can be no part of a stop string. Nothing once one is complete.
    fn push(&mut self, text: &str) -> String {
        if self.complete {
            return String::new();
        }
        let mut text = std::mem::take(&mut self.held) + text;
        // By its end, not its start: else a longer one that starts earlier would win or lose by how the text is cut.
        let found = self.stops().filter_map(|stop| text.find(stop).map(|start| (start + stop.len(), start))).min();
        if let Some((_, start)) = found {
            self.complete = true;
            text.truncate(start);
            return text;
        }
        let held = self.stops().map(|stop| overlap(&text, stop)).max().unwrap_or(0);
        self.held = text.split_off(text.len() - held);
        text
    }

    /// What was held back in vain.
    fn finish(&mut self) -> String {
        std::mem::take(&mut self.held)
    }

    fn is_complete(&self) -> bool {
        self.complete
    }

    /// An empty stop string would end every answer before it starts.
    fn stops(&self) -> impl Iterator<Item = &'a str> {
        self.stop.iter().map(String::as_str).filter(|stop| !stop.is_empty())
    }
}

/// Bytes of the longest proper prefix of `stop` that `text` ends with. Both are UTF-8, so it starts at a character.
fn overlap(text: &str, stop: &str) -> usize {
    let (text, stop) = (text.as_bytes(), stop.as_bytes());
    (1..stop.len().min(text.len() + 1)).rev().find(|&len| text.ends_with(&stop[..len])).unwrap_or(0)
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
mod tests {
    use std::path::Path;

    use super::*;
    use crate::backend::{Backend, Batch, Info};
    use crate::engine::{OnFull, Options};
    use crate::gguf::Gguf;
    use crate::kv::layout::BlockId;
    use crate::sampler::Params;

    fn stops(stop: &[&str]) -> Vec<String> {
        stop.iter().map(|stop| stop.to_string()).collect()
    }

    /// What comes out for `pieces`, piece by piece, and whether a stop string ended it.
    fn filtered<'a>(stop: &[&str], pieces: impl IntoIterator<Item = &'a str>) -> (Vec<String>, bool) {
        let stop = stops(stop);
        let mut filter = StopFilter::new(&stop);
        let mut out: Vec<String> = pieces.into_iter().map(|piece| filter.push(piece)).collect();
        out.push(filter.finish());
        (out, filter.is_complete())
    }

    /// What comes out in all: it must not depend on how the text is cut.
    fn answer(stop: &[&str], text: &str) -> (String, bool) {
        let (whole, complete) = filtered(stop, [text]);
        let whole = whole.concat();
        for cut in text.char_indices().map(|(at, _)| at) {
            let (pieces, complete_too) = filtered(stop, [&text[..cut], &text[cut..]]);
            assert_eq!((pieces.concat(), complete_too), (whole.clone(), complete), "cut at {cut}");
        }
        let chars: Vec<String> = text.chars().map(String::from).collect();
        let (pieces, complete_too) = filtered(stop, chars.iter().map(String::as_str));
        assert_eq!((pieces.concat(), complete_too), (whole.clone(), complete), "character by character");
        (whole, complete)
    }

    #[test]
    fn the_answer_ends_before_the_stop_string() {
        assert_eq!(answer(&["\nUser:"], "Hello.\nUser: and more"), ("Hello.".into(), true));
        assert_eq!(answer(&["\nUser:"], "\nUser:"), ("".into(), true));
        assert_eq!(answer(&["stop"], "no end"), ("no end".into(), false));
    }

    #[test]
    fn text_that_can_become_a_stop_string_waits() {
        let (pieces, complete) = filtered(&["END"], ["a E", "N", "", "x"]);
        assert_eq!((pieces, complete), (vec!["a ".into(), "".into(), "".into(), "ENx".into(), "".into()], false));
        let (pieces, complete) = filtered(&["END"], ["a E", "N", "D!"]);
        assert_eq!((pieces.concat(), complete), ("a ".into(), true));
    }

    #[test]
    fn what_waited_in_vain_comes_at_the_end() {
        assert_eq!(filtered(&["END"], ["a EN"]).0, ["a ", "EN"]);
    }

    #[test]
    fn a_stop_string_that_starts_within_a_failed_one_is_found() {
        assert_eq!(answer(&["aab"], "xaaab"), ("xa".into(), true));
        assert_eq!(answer(&["abcabd"], "abcabcabd."), ("abc".into(), true));
    }

    #[test]
    fn of_several_the_first_to_be_complete_counts() {
        assert_eq!(answer(&["abcd", "bc"], "xabcd"), ("xa".into(), true));
        assert_eq!(answer(&["bc", "abc"], "xabcd"), ("x".into(), true), "both end at once: nothing of either is shown");
        assert_eq!(answer(&["two", "one"], "0 one two"), ("0 ".into(), true));
    }

    #[test]
    fn stop_strings_of_wide_characters() {
        assert_eq!(answer(&["終わり"], "これで終わりです"), ("これで".into(), true));
        // The first bytes of both are the same: the cut must not fall inside a character.
        assert_eq!(answer(&["終わり"], "これで絀"), ("これで絀".into(), false));
    }

    #[test]
    fn an_empty_stop_string_is_none() {
        assert_eq!(answer(&[""], "text"), ("text".into(), false));
    }

    /// Ids 0 to 25 are letters, 26 to 51 the same letter twice, 100 and more control tokens.
    fn units(id: TokenId) -> Vec<u32> {
        match id {
            0..26 => vec![id],
            26..52 => vec![id - 26; 2],
            _ => vec![256 + id],
        }
    }

    #[test]
    fn a_reply_keeps_the_ids_it_was_spoken_in() {
        let prompt = [100, 7, 101];
        let reply = [3, 3, 4];
        let spoken = [prompt.as_slice(), &reply].concat();
        // The tokenizer would write the reply as 29 4.
        let fresh = [100, 7, 101, 29, 4, 102, 8, 101];
        assert_eq!(keep_ids(&spoken, &fresh, units), [100, 7, 101, 3, 3, 4, 102, 8, 101]);
    }

    #[test]
    fn a_reply_that_was_changed_is_read_afresh_from_there() {
        let spoken = [100, 7, 101, 3, 3, 4];
        // As if the template had trimmed the reply's end and begun it otherwise.
        assert_eq!(keep_ids(&spoken, &[100, 7, 101, 29, 102], units), [100, 7, 101, 3, 3, 102]);
        assert_eq!(keep_ids(&spoken, &[100, 7, 101, 5, 102], units), [100, 7, 101, 5, 102]);
        assert_eq!(keep_ids(&spoken, &[100, 8], units), [100, 8]);
    }

    #[test]
    fn a_cut_falls_only_between_ids_of_both() {
        // "3 3 3" as (3)(3 3) against (3 3)(3 9): they agree on three letters, but share no border after the first id.
        assert_eq!(keep_ids(&[100, 3, 29], &[100, 29, 3, 9], units), [100, 3, 29, 9]);
        assert_eq!(keep_ids(&[100, 3, 29, 5], &[100, 29, 29], units), [100, 29, 29]);
    }

    #[test]
    fn keeping_ids_never_changes_the_text() {
        let text = |ids: &[TokenId]| ids.iter().flat_map(|&id| units(id)).collect::<Vec<_>>();
        let lists: Vec<Vec<TokenId>> = (0..3u32.pow(4))
            .map(|n| (0..4).map(|digit| [1, 27, 100][(n / 3u32.pow(digit) % 3) as usize]).collect())
            .collect();
        for spoken in &lists {
            for fresh in &lists {
                assert_eq!(text(&keep_ids(spoken, fresh, units)), text(fresh), "{spoken:?} {fresh:?}");
            }
        }
        assert_eq!(keep_ids(&[], &[1, 2], units), [1, 2]);
        assert!(keep_ids(&[1, 2], &[], units).is_empty());
    }

    /// Says the same text after every prompt of `prompt_len` tokens.
    struct Reciter {
        info: Info,
        prompt_len: usize,
        answer: Vec<TokenId>,
        logits: Vec<f32>,
    }

    impl Backend for Reciter {
        fn info(&self) -> &Info {
            &self.info
        }
        fn reserve(&mut self, _: usize) -> anyhow::Result<()> {
            Ok(())
        }
        fn forward(&mut self, batch: &Batch) -> anyhow::Result<&[f32]> {
            self.logits.clear();
            for &wanted in &batch.wanted {
                let said = batch.rows[0].cached_tokens + wanted + 1 - self.prompt_len;
                let next = self.answer.get(said).copied().unwrap_or(END);
                self.logits.extend((0..VOCAB as TokenId).map(|id| if id == next { 1.0 } else { 0.0 }));
            }
            Ok(&self.logits)
        }
        fn copy_block(&mut self, _: BlockId, _: BlockId) {}
        fn release_blocks(&mut self, _: &[BlockId]) {}
        fn read_block(&self, _: BlockId, contents: &mut [u8]) {
            contents.fill(0);
        }
        fn write_block(&mut self, _: BlockId, _: &[u8]) {}
    }

    /// The micro model's tokenizer: one token a byte, three control tokens before them.
    const VOCAB: usize = 320;
    const END: TokenId = 2;

    fn byte_ids(text: &str) -> Vec<TokenId> {
        text.bytes().map(|byte| TokenId::from(byte) + 3).collect()
    }

    fn greedy() -> Params {
        Params { temperature: 0.0, ..Params::default() }
    }

    struct Answer {
        result: anyhow::Result<Completion>,
        /// Pieces of text, and how often the prefill reported.
        pieces: Vec<String>,
        prefills: usize,
        /// Tokens the sequence holds in the end.
        held: usize,
    }

    /// Lets the reciter say `answer` after "Hey:", breaking off after `events` events.
    fn recite(answer: &[TokenId], params: Params, context_tokens: usize, request: Request, events: usize) -> Answer {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/micro/F32.gguf");
        let gguf = Gguf::open(&path).unwrap();
        let tokenizer = Tokenizer::from_gguf(&gguf).unwrap();
        let info = Info {
            identity: 1,
            block_bytes: 1,
            device: "reciter".into(),
            threads: 1,
            vocab: VOCAB,
            trained_tokens: 512,
            weight_bytes_per_token: 0,
            kv_bytes_per_token: 0,
            block_stride_bytes: 0,
            batch_tokens: 2,
            batch_logits: 2,
        };
        let prompt = byte_ids("Hey:");
        let backend = Reciter { info, prompt_len: prompt.len(), answer: answer.to_vec(), logits: Vec::new() };
        let mut engine = Engine::new(
            Box::new(backend),
            &Options { context_tokens, sequences: 1, cache_tokens: 0, on_full: OnFull::Stop },
        )
        .unwrap();
        let sequence = engine.new_sequence();
        let (mut pieces, mut prefills, mut seen) = (Vec::new(), 0, 0);
        let mut on_event = |event: Event| {
            match event {
                Event::Prefill { .. } => prefills += 1,
                Event::Text(text) => pieces.push(text.to_string()),
                Event::Notice(notice) => panic!("nothing is forgotten: {notice:?}"),
            }
            seen += 1;
            if seen >= events { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        };
        let request = Request { prompt: &prompt, ..request };
        let mut sampler = Sampler::new(params);
        let result = generate(&mut engine, sequence, &tokenizer, &mut sampler, &request, &mut on_event);
        Answer { result, pieces, prefills, held: engine.tokens(sequence).len() }
    }

    const ANY: Request = Request { prompt: &[], max_tokens: None, stop: &[] };
    const NO_BREAK: usize = usize::MAX;

    #[test]
    fn an_answer_streams_token_by_token_up_to_the_end_token() {
        let answer = recite(&byte_ids("You."), greedy(), 64, ANY, NO_BREAK);
        let completion = answer.result.unwrap();
        assert_eq!((answer.prefills, answer.pieces), (2, stops(&["Y", "o", "u", "."])));
        assert_eq!((completion.text.as_str(), completion.ids), ("You.", byte_ids("You.")));
        assert_eq!((completion.finish_reason, completion.context_full), (FinishReason::Stop, false));
        assert_eq!((completion.prompt_tokens, completion.cached_tokens, completion.decode_steps), (4, 0, 4));
    }

    #[test]
    fn max_tokens_counts_exactly_and_the_last_token_is_not_computed() {
        for (max_tokens, held) in [(0, 4), (1, 4), (3, 6)] {
            let request = Request { max_tokens: Some(max_tokens), ..ANY };
            let answer = recite(&byte_ids("You."), greedy(), 64, request, NO_BREAK);
            let completion = answer.result.unwrap();
            assert_eq!(completion.text, "You."[..max_tokens]);
            assert_eq!((completion.finish_reason, completion.context_full), (FinishReason::Length, false));
            assert_eq!(answer.held, held);
        }
    }

    #[test]
    fn prompt_and_answer_fill_the_context_to_the_last_token() {
        for (context_tokens, text) in [(4, ""), (5, "Y"), (7, "You")] {
            let completion = recite(&byte_ids("You."), greedy(), context_tokens, ANY, NO_BREAK).result.unwrap();
            assert_eq!(completion.text, text);
            assert_eq!((completion.finish_reason, completion.context_full), (FinishReason::Length, true));
        }
        let error = recite(&[], greedy(), 3, ANY, NO_BREAK).result.unwrap_err();
        assert_eq!(format!("{error:#}"), "the prompt could not be read: 4 tokens do not fit the context of 3");
    }

    #[test]
    fn a_stop_string_ends_the_answer_across_tokens() {
        let stop = stops(&["END"]);
        let answer = recite(&byte_ids("an EEND, yes"), greedy(), 64, Request { stop: &stop, ..ANY }, NO_BREAK);
        let completion = answer.result.unwrap();
        assert_eq!((completion.text.as_str(), completion.finish_reason), ("an E", FinishReason::Stop));
        assert_eq!(answer.pieces.concat(), "an E");
        let completion =
            recite(&byte_ids("an EN"), greedy(), 64, Request { stop: &stop, ..ANY }, NO_BREAK).result.unwrap();
        assert_eq!(completion.text, "an EN", "what was held back comes at the end");
    }

    #[test]
    fn characters_come_whole() {
        let answer = recite(&byte_ids("a😀é"), greedy(), 64, ANY, NO_BREAK);
        assert_eq!(answer.pieces, stops(&["a", "", "", "", "😀", "", "é"]));
        let cut = recite(&byte_ids("a😀"), greedy(), 64, Request { max_tokens: Some(3), ..ANY }, NO_BREAK);
        assert_eq!(cut.pieces, stops(&["a", "", ""]), "cut inside a character");
        assert_eq!(cut.result.unwrap().text, "a");
        let context_full = recite(&byte_ids("a😀"), greedy(), 7, ANY, NO_BREAK);
        assert_eq!(context_full.result.unwrap().text, "a");
        // Prefill twice, then "a", then the first byte: the event that breaks off.
        assert_eq!(recite(&byte_ids("a😀"), greedy(), 64, ANY, 4).result.unwrap().text, "a");
        let ended = recite(&byte_ids("a😀")[..3], greedy(), 64, ANY, NO_BREAK);
        assert_eq!(ended.pieces, stops(&["a", "", "", "\u{fffd}"]), "the model itself ended inside a character");
        let never =
            recite(&[byte_ids("a")[0], 0xff + 3], greedy(), 64, Request { max_tokens: Some(2), ..ANY }, NO_BREAK);
        assert_eq!(never.pieces, stops(&["a", "\u{fffd}"]), "no byte can follow this one");
    }

    #[test]
    fn control_tokens_leave_no_text() {
        let ids = [byte_ids("a"), vec![1, 1], byte_ids("b")].concat();
        let completion = recite(&ids, greedy(), 64, ANY, NO_BREAK).result.unwrap();
        assert_eq!((completion.text.as_str(), completion.ids), ("ab", ids));
    }

    #[test]
    fn breaking_off_keeps_what_was_said() {
        let interrupted = |events| recite(&byte_ids("You."), greedy(), 64, ANY, events).result.unwrap();
        let in_the_prompt = interrupted(1);
        assert_eq!((in_the_prompt.text.as_str(), in_the_prompt.finish_reason), ("", FinishReason::Interrupted));
        let in_the_answer = interrupted(4);
        assert_eq!((in_the_answer.text.as_str(), in_the_answer.finish_reason), ("Yo", FinishReason::Interrupted));
        assert_eq!(in_the_answer.ids, byte_ids("Yo"));
    }

    #[test]
    fn penalties_see_the_prompt_and_the_answer() {
        let said = |answer: &str, repeat_last_n| {
            let params = Params { presence_penalty: 2.0, repeat_last_n, ..greedy() };
            recite(&byte_ids(answer), params, 64, Request { max_tokens: Some(2), ..ANY }, NO_BREAK).result.unwrap().ids
        };
        assert_eq!(said("He", 64), [0, 1], "both letters are in the prompt, so the lowest other ids come");
        assert_eq!(said("He", 0), byte_ids("He"));
        assert_eq!(said("aa", 64), [byte_ids("a")[0], 0]);
    }

    #[test]
    fn banned_end_tokens_do_not_come() {
        let params = Params { banned: vec![END], ..greedy() };
        let request = Request { max_tokens: Some(6), ..ANY };
        let completion = recite(&byte_ids("ab"), params, 64, request, NO_BREAK).result.unwrap();
        assert_eq!((completion.ids.len(), completion.finish_reason), (6, FinishReason::Length));
    }
}
