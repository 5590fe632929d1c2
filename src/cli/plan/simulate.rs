//! `sayfa plan --simulate`: requests of a trace, admitted in order into KV memory that is reserved for whole contexts or
//! taken page by page.

use std::collections::VecDeque;
use std::path::Path;

use anyhow::{Context, anyhow, bail};
use serde_json::json;

use super::question::Question;
use super::show::{grouped, known, kv_name};
use crate::cli::Ended;
use crate::cli::input::{Form, read_file};
use crate::cli::machine::size;
use crate::cli::terminal::Terminal;
use crate::kv::layout::BLOCK_TOKENS;
use crate::kv::plan::blocks;

/// Runs a trace through both policies, with the KV memory that weights and scratch leave.
pub fn simulate_trace(
    trace: &Path,
    question: &Question,
    as_json: bool,
    terminal: &mut Terminal,
) -> anyhow::Result<Ended> {
    let context_tokens = question.demand.context_tokens;
    let named = format!("--trace {}", trace.display());
    let text = read_file(trace, "--trace", Form::Exact, false, terminal)?;
    let requests = parse(&text).map_err(|error| anyhow!("{named}: {error}"))?;
    if let Some(request) = requests.iter().find(|request| request.tokens() > context_tokens) {
        bail!(
            "{named}: line {}: {} tokens of prompt and {} of answer are more than the context of {context_tokens} (-c)",
            request.line,
            request.prompt_tokens,
            request.answer_tokens
        );
    }
    let devices = question.devices();
    let device = devices.first().context("there is always the host")?;
    // Weights that are read for every token have to stay in memory, mapped or not.
    let (weights, scratch) = (device.part.weights_bytes, device.part.scratch_bytes(&device.demand));
    let budget = device.memory.bytes.saturating_sub(weights).saturating_sub(scratch);
    let blocks = budget / device.part.kv.stride.max(1);
    let budget_tokens = blocks.saturating_mul(BLOCK_TOKENS as u64);
    let Some(paged) = simulate(&requests, blocks, Policy::Paged) else {
        bail!(
            "{} ({}) leaves {} for KV beside {} of weights and {} of scratch: {budget_tokens} tokens, but the largest \
             request has {}",
            device.memory.limit,
            size(device.memory.bytes),
            size(budget),
            size(weights),
            size(scratch),
            requests.iter().map(Request::tokens).max().unwrap_or(0)
        );
    };
    let reserved = simulate(&requests, blocks, Policy::Reserved { context_tokens });
    if as_json {
        let report = json!({
            "model": question.name,
            "requests": requests.len(),
            "context_tokens": context_tokens,
            "kv_budget_bytes": budget,
            "kv_budget_tokens": budget_tokens,
            "reserved": reserved,
            "paged": paged,
        });
        terminal.write_line(&report.to_string())?;
        return Ok(Ended::Done);
    }
    let sum = |tokens: fn(&Request) -> usize| grouped(requests.iter().map(tokens).sum::<usize>() as u64);
    let row = |label: &str, cell: fn(&Outcome) -> String| {
        let reserved = reserved.as_ref().map_or("none fits".to_string(), cell);
        format!("  {label:<26}{reserved:>20}{:>20}", cell(&paged))
    };
    let lines = [
        format!("{}, KV in {}", question.name, kv_name(question.demand.kv_types)),
        format!(
            "{} requests: {} tokens of prompt, {} of answer",
            requests.len(),
            sum(|request| request.prompt_tokens),
            sum(|request| request.answer_tokens)
        ),
        format!("{} for KV: {} tokens", known(budget), grouped(budget_tokens)),
        String::new(),
        format!(
            "  {:<26}{:>20}{:>20}",
            "",
            format!("{context_tokens} tokens each"),
            format!("pages of {BLOCK_TOKENS}")
        ),
        row("KV memory wasted", |outcome| format!("{:.1} %", 100.0 * outcome.wasted)),
        row("sequences at once, mean", |outcome| format!("{:.1}", outcome.mean_sequences)),
        row("sequences at once, most", |outcome| outcome.most_sequences.to_string()),
        row("steps until all is done", |outcome| grouped(outcome.steps)),
        row("put back for lack of room", |outcome| grouped(outcome.put_back)),
    ];
    for line in lines {
        terminal.write_line(&line)?;
    }
    Ok(Ended::Done)
}

/// One line of a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    pub prompt_tokens: usize,
    pub answer_tokens: usize,
    pub line: usize,
}

impl Request {
    pub fn tokens(&self) -> usize {
        self.prompt_tokens + self.answer_tokens
    }
}

/// Most tokens of a prompt or an answer: keeps sums and run times sane.
const MAX_TOKENS: usize = 1 << 24;

/// Lines of `PROMPT_TOKENS ANSWER_TOKENS`; # starts a comment.
pub fn parse(text: &str) -> Result<Vec<Request>, String> {
    let mut requests = vec![];
    for (line, text) in (1..).zip(text.lines()) {
        let content = text.split('#').next().unwrap_or("").trim();
        if content.is_empty() {
            continue;
        }
        let numbers: Vec<Option<usize>> = content.split_whitespace().map(|word| word.parse().ok()).collect();
        match numbers[..] {
            [Some(prompt_tokens @ 1..=MAX_TOKENS), Some(answer_tokens @ 1..=MAX_TOKENS)] => {
                requests.push(Request { prompt_tokens, answer_tokens, line });
            }
            _ => {
                return Err(format!(
                    "line {line}: {content:?} is not PROMPT_TOKENS ANSWER_TOKENS, two whole numbers from 1 to {MAX_TOKENS}"
                ));
            }
        }
    }
    if requests.is_empty() {
        return Err("there is no request in it: give one a line, PROMPT_TOKENS ANSWER_TOKENS".to_string());
    }
    Ok(requests)
}

/// How KV memory is given to sequences.
#[derive(Clone, Copy, Debug)]
pub enum Policy {
    /// A sequence takes a whole context when it is admitted.
    Reserved { context_tokens: usize },
    /// A sequence takes a block when it needs one. When none is left, the one that was admitted last gives all of its
    /// own back, waits at the head of the queue and is read again.
    Paged,
}

#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize)]
pub struct Outcome {
    pub steps: u64,
    /// Share of the memory taken that holds nothing, averaged over steps.
    pub wasted: f64,
    pub mean_sequences: f64,
    pub most_sequences: usize,
    /// How often a sequence had to give its memory back before its end.
    pub put_back: u64,
}

/// A sequence that runs or waits to go on.
#[derive(Clone, Copy)]
struct Sequence {
    request: Request,
    answered: usize,
    blocks: u64,
}

impl Sequence {
    fn tokens(&self) -> usize {
        self.request.prompt_tokens + self.answered
    }
}

/// Every step each running sequence makes one token of its answer, the first in the step that reads its prompt. `None`
/// when some request can never be admitted.
pub fn simulate(requests: &[Request], total_blocks: u64, policy: Policy) -> Option<Outcome> {
    let takes = |tokens: usize| match policy {
        Policy::Reserved { context_tokens } => blocks(context_tokens.max(tokens)),
        Policy::Paged => blocks(tokens),
    };
    if requests.iter().any(|request| takes(request.tokens()) > total_blocks) {
        return None;
    }
    let waiting = requests.iter().map(|&request| Sequence { request, answered: 0, blocks: 0 });
    let (mut waiting, mut running) = (waiting.collect::<VecDeque<_>>(), Vec::<Sequence>::new());
    let mut free = total_blocks;
    let (mut steps, mut wasted, mut sequences, mut most, mut put_back) = (0u64, 0.0, 0u64, 0, 0);
    while !(waiting.is_empty() && running.is_empty()) {
        let mut is_short = false;
        let mut i = 0;
        while i < running.len() {
            let more = takes(running[i].tokens() + 1) - running[i].blocks;
            if more <= free {
                running[i].blocks += more;
                running[i].answered += 1;
                free -= more;
                i += 1;
            } else if let Some(last) = running.pop() {
                free += last.blocks;
                waiting.push_front(Sequence { blocks: 0, ..last });
                (put_back, is_short) = (put_back + 1, true);
            }
        }
        while let Some(next) = waiting.front().copied().filter(|next| !is_short && takes(next.tokens() + 1) <= free) {
            let blocks = takes(next.tokens() + 1);
            free -= blocks;
            running.push(Sequence { answered: next.answered + 1, blocks, ..next });
            waiting.pop_front();
        }
        let taken: u64 = running.iter().map(|sequence| sequence.blocks * BLOCK_TOKENS as u64).sum();
        let used: u64 = running.iter().map(|sequence| sequence.tokens() as u64).sum();
        wasted += (taken - used) as f64 / taken as f64;
        (steps, sequences, most) = (steps + 1, sequences + running.len() as u64, most.max(running.len()));
        running.retain(|sequence| {
            let goes_on = sequence.answered < sequence.request.answer_tokens;
            free += if goes_on { 0 } else { sequence.blocks };
            goes_on
        });
    }
    let per_step = |sum: f64| sum / steps as f64;
    let (wasted, mean_sequences) = (per_step(wasted), per_step(sequences as f64));
    Some(Outcome { steps, wasted, mean_sequences, most_sequences: most, put_back })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn trace(pairs: &[(usize, usize)]) -> Vec<Request> {
        let request =
            |(line, &(prompt_tokens, answer_tokens))| Request { prompt_tokens, answer_tokens, line: line + 1 };
        pairs.iter().enumerate().map(request).collect()
    }

    #[test]
    fn two_equal_requests_by_hand() {
        let requests = trace(&[(20, 2), (20, 2)]);
        // room for two contexts of 64: both run, with 2 * 21, then 2 * 22 of 128 tokens used
        let reserved = simulate(&requests, 8, Policy::Reserved { context_tokens: 64 }).unwrap();
        assert_eq!((reserved.steps, reserved.most_sequences, reserved.mean_sequences), (2, 2, 2.0));
        assert_eq!(reserved.wasted, (86.0 / 128.0 + 84.0 / 128.0) / 2.0);
        // 21 and 22 tokens take two blocks each
        let paged = simulate(&requests, 8, Policy::Paged).unwrap();
        assert_eq!((paged.steps, paged.most_sequences, paged.put_back), (2, 2, 0));
        assert_eq!(paged.wasted, (22.0 / 64.0 + 20.0 / 64.0) / 2.0);
    }

    #[test]
    fn reserved_contexts_go_one_after_the_other_where_pages_go_together() {
        let requests = trace(&[(10, 3), (10, 3), (10, 3)]);
        let reserved = simulate(&requests, 5, Policy::Reserved { context_tokens: 50 }).unwrap();
        // 50 tokens are four blocks: one at a time, with 11, 12, 13 of 64 tokens used
        assert_eq!((reserved.steps, reserved.most_sequences, reserved.mean_sequences), (9, 1, 1.0));
        assert!((reserved.wasted - (53.0 + 52.0 + 51.0) / 3.0 / 64.0).abs() < 1e-12);
        let paged = simulate(&requests, 5, Policy::Paged).unwrap();
        assert_eq!((paged.steps, paged.most_sequences), (3, 3));
        assert!((paged.wasted - (5.0 + 4.0 + 3.0) / 3.0 / 16.0).abs() < 1e-12);
    }

    #[test]
    fn when_blocks_run_out_the_youngest_waits_and_goes_on_later() {
        // three blocks; each request starts with one and needs two from its third token on
        let requests = trace(&[(14, 4), (14, 4)]);
        let paged = simulate(&requests, 3, Policy::Paged).unwrap();
        // steps 1, 2: both (15, 16 tokens); step 3: the first takes the last block, the second is put back with two
        // tokens answered; step 4: the first ends; steps 5, 6: the second
        assert_eq!((paged.steps, paged.put_back, paged.most_sequences), (6, 1, 2));
        assert_eq!(paged.mean_sequences, 8.0 / 6.0);
        let wasted = [2.0 / 32.0, 0.0, 15.0 / 32.0, 14.0 / 32.0, 15.0 / 32.0, 14.0 / 32.0];
        assert!((paged.wasted - wasted.iter().sum::<f64>() / 6.0).abs() < 1e-12);
    }

    #[test]
    fn a_request_that_can_never_be_admitted_is_told() {
        assert_eq!(simulate(&trace(&[(40, 9)]), 3, Policy::Paged), None);
        assert_eq!(simulate(&trace(&[(4, 9)]), 3, Policy::Reserved { context_tokens: 64 }), None);
    }

    #[test]
    fn traces_are_read_and_errors_name_the_line() {
        assert_eq!(parse("# a\n\n 5 6 # b\n7\t8\r\n").unwrap().len(), 2);
        assert_eq!(parse("1 2\n3 4\n").unwrap()[1], Request { prompt_tokens: 3, answer_tokens: 4, line: 2 });
        for (text, words) in [
            ("1 2\n3\n", "line 2"),
            ("1 2 3", "line 1"),
            ("1 0", "\"1 0\""),
            ("-1 5", "line 1"),
            ("a b", "line 1"),
            ("99999999999999999999 1", "line 1"),
            ("# only\n", "no request"),
        ] {
            assert!(parse(text).unwrap_err().contains(words), "{text:?}");
        }
    }
}
