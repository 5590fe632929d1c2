use std::path::Path;

use super::*;
use crate::backend::{Backend, Batch, Best, Info, Input, Output, Want};
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
    best: Vec<Best>,
}

impl Backend for Reciter {
    fn info(&self) -> &Info {
        &self.info
    }
    fn reserve(&mut self, _: usize, _: usize) -> anyhow::Result<()> {
        Ok(())
    }
    fn run(&mut self, batch: &Batch, _: Input, want: Want) -> anyhow::Result<Output<'_>> {
        self.logits.clear();
        for &wanted in &batch.wanted {
            let said = batch.rows[0].cached_tokens + wanted + 1 - self.prompt_len;
            let next = self.answer.get(said).copied().unwrap_or(END);
            self.logits.extend((0..VOCAB as TokenId).map(|id| if id == next { 1.0 } else { 0.0 }));
        }
        self.best = self.logits.chunks(self.info.vocab).map(Best::of).collect();
        Ok(if want == Want::Best { Output::Best(&self.best) } else { Output::Logits(&self.logits) })
    }
    fn copy_block(&mut self, _: BlockId, _: BlockId) -> anyhow::Result<()> {
        Ok(())
    }
    fn release_blocks(&mut self, _: &[BlockId]) {}
    fn read_block(&self, _: BlockId, contents: &mut [u8]) -> anyhow::Result<()> {
        contents.fill(0);
        Ok(())
    }
    fn write_block(&mut self, _: BlockId, _: &[u8]) -> anyhow::Result<()> {
        Ok(())
    }
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
    let backend = Reciter { info, prompt_len: prompt.len(), answer: answer.to_vec(), logits: Vec::new(), best: vec![] };
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
            Event::Chosen(_) => {}
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

const ANY: Request = Request { prompt: &[], max_tokens: None, stop: &[], logprobs: None };
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
    let completion = recite(&byte_ids("an EN"), greedy(), 64, Request { stop: &stop, ..ANY }, NO_BREAK).result.unwrap();
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
    let never = recite(&[byte_ids("a")[0], 0xff + 3], greedy(), 64, Request { max_tokens: Some(2), ..ANY }, NO_BREAK);
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
