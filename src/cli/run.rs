//! `sayfa run`: one prompt, one answer or several.

use std::ops::ControlFlow;

use anyhow::bail;
use clap::Args;
use serde_json::json;

use super::args::{CacheArgs, GenerationArgs, ModelArgs, OnFullName, SamplingArgs, SystemArgs, Talk};
use super::input::InputArgs;
use super::load::{self, Loaded, Texts};
use super::notices::Notices;
use super::prompt::{self, GapArgs};
use super::session::{self, SessionArgs};
use super::terminal::{Interrupts, Terminal};
use super::{Ended, counted};
use crate::engine::SequenceId;
use crate::generation::{self, Completion, Event, FinishReason, Request};
use crate::sampler::{Params, Sampler};
use crate::template::Prompt;

#[derive(Debug, Args)]
pub struct RunArgs {
    #[command(flatten)]
    pub model: ModelArgs,
    #[command(flatten)]
    pub cache: CacheArgs,
    #[command(flatten)]
    pub input: InputArgs,
    #[command(flatten)]
    pub system: SystemArgs,

    /// Give the text to the model as it is: no chat template, and names of control tokens in it are control tokens
    #[arg(long, help_heading = "Prompt", conflicts_with_all = ["system", "system_file", "system_in_user", "chat_template"])]
    pub raw: bool,

    #[command(flatten)]
    pub gap: GapArgs,

    /// Print the prompt's tokens as JSON {text, ids, pieces} instead of answering
    #[arg(long, help_heading = "Prompt")]
    pub dump_prompt: bool,

    #[command(flatten)]
    pub generation: GenerationArgs,

    /// Answers to the one prompt, which is read once; the seeds are --seed, --seed + 1 and so on. A blank line stands
    /// between two answers; --json tells them apart whatever they hold
    #[arg(long = "n", value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1024), allow_negative_numbers = true, help_heading = "Generation")]
    pub n: u32,

    #[command(flatten)]
    pub sampling: SamplingArgs,
    #[command(flatten)]
    pub session: SessionArgs,

    /// Print one JSON object with the answer, its finish reason, token counts, speeds and the seed; with --n above 1
    /// {completions: [of these]}
    #[arg(long, help_heading = "Output")]
    pub json: bool,

    /// Times and speeds of loading, prompt and answer, and the seed, on standard error
    #[arg(long, help_heading = "Output")]
    pub stats: bool,

    #[command(flatten)]
    pub talk: Talk,
}

pub fn run(args: &RunArgs, terminal: &mut Terminal) -> anyhow::Result<Ended> {
    let asked = prompt::read(args, terminal)?;
    if args.dump_prompt {
        let texts = Texts::open(args.model.model.as_deref(), args.system.chat_template.as_deref())?;
        let prompt = prompt::build_prompt(args, &asked, &texts, terminal)?;
        let pieces: Vec<&str> = prompt.ids.iter().map(|&id| texts.tokenizer.piece(id)).collect();
        terminal.write_line(&json!({"text": prompt.text, "ids": prompt.ids, "pieces": pieces}).to_string())?;
        return Ok(Ended::Done);
    }
    args.session.check_place()?;
    // The prompt stays in a sequence of its own while an answer is drawn in a fork.
    let sequences = if args.n > 1 { 2 } else { 1 };
    let template = args.system.chat_template.as_deref();
    let mut loaded = load::load_for_text(&args.model, &args.cache, sequences, template, terminal)?;
    let prompt = prompt::build_prompt(args, &asked, &loaded.texts, terminal)?;
    let (asked, context_tokens) = (prompt.ids.len(), loaded.engine.context_tokens());
    loaded.engine.set_on_full(args.cache.on_full_after(asked, context_tokens)?);
    let needed = if loaded.engine.evictable_tokens().is_none() { asked + 1 } else { asked };
    if needed > context_tokens {
        bail!(
            "the prompt has {}, which leaves no room for an answer in a context of {context_tokens}: \
             shorten it, or raise -c (the model was trained for {})",
            counted(asked, "token"),
            loaded.config.context_tokens
        );
    }
    // What is saved in the end: the prompt with its answer, the prompt alone where several answers fork from it.
    let home = loaded.engine.new_sequence();
    let about = session::about(&args.model, &loaded);
    if let Some(mut saved) = args.session.open(&about, terminal)? {
        if !saved.head.notes.is_empty() && !args.session.session_ro {
            bail!(
                "{} holds a conversation, which `run` would overwrite: use another file, or add --session-ro",
                saved.path().display()
            );
        }
        session::restore(&mut saved, &mut loaded.engine, home, terminal)?;
    }
    let mut answers = Vec::new();
    let read = if args.n > 1 { Some(read_once(&prompt, home, &mut loaded, terminal)?) } else { None };
    for i in 0..args.n {
        let mut params = args.sampling.params(&loaded.texts.tokenizer);
        // The first sampler draws the seed that the others count on from.
        let first_seed = answers.first().map(|first: &Answer| first.seed);
        params.seed = first_seed.map_or(params.seed, |first| Some(first.wrapping_add(u64::from(i))));
        let mut sampler = Sampler::new(params);
        if i > 0 {
            terminal.info(&format!("--- {} of {}, seed {}", i + 1, args.n, sampler.seed()));
            if !args.json {
                terminal.write_text("\n")?;
            }
        }
        let sequence = if read.is_some() { loaded.engine.fork(home) } else { home };
        let completion = answer(args, &prompt, sequence, &mut loaded, &mut sampler, terminal)?;
        if sequence != home {
            loaded.engine.free_sequence(sequence);
        }
        if !args.json {
            terminal.write_text("\n")?;
        }
        terminal.flush()?;
        if completion.context_full {
            warn_full(args, context_tokens, terminal);
        } else if completion.finish_reason == FinishReason::Length {
            terminal.info(&format!("stopped after -n {}", counted(completion.ids.len(), "token")));
        }
        let was_interrupted = completion.finish_reason == FinishReason::Interrupted;
        answers.push(Answer { completion, seed: sampler.seed() });
        if was_interrupted {
            break;
        }
    }
    if let (Some(read), Some(first)) = (&read, answers.first_mut()) {
        // Their one reading of the prompt stands with the first answer.
        first.completion.cached_tokens = read.cached_tokens;
        first.completion.prefill_seconds += read.prefill_seconds;
    }
    if args.json {
        let mut all: Vec<_> = answers.iter().map(Answer::to_json).collect();
        let report = if args.n == 1 { all.remove(0) } else { json!({ "completions": all }) };
        terminal.write_line(&report.to_string())?;
        terminal.flush()?;
    }
    if let Some(path) = args.session.to_write() {
        session::save(&loaded.engine, home, path, &about, terminal)?;
    }
    if args.stats {
        answers.iter().for_each(|answer| terminal.talk(&stats(&loaded, &answer.completion, answer.seed)));
    }
    let was_interrupted = |answer: &Answer| answer.completion.finish_reason == FinishReason::Interrupted;
    Ok(if answers.iter().any(was_interrupted) { Ended::Interrupted } else { Ended::Done })
}

struct Answer {
    completion: Completion,
    seed: u64,
}

/// Makes `origin` hold the prompt, to fork answers from, and tells what reading it took.
fn read_once(
    prompt: &Prompt,
    origin: SequenceId,
    loaded: &mut Loaded,
    terminal: &Terminal,
) -> anyhow::Result<Completion> {
    let mut progress = terminal.progress_tokens("reading the prompt", prompt.ids.len());
    let mut on_event = |event: Event| {
        if let Event::Prefill { done, .. } = event {
            progress.set(done as u64);
        }
        ControlFlow::Continue(())
    };
    let request = Request { prompt: &prompt.ids, max_tokens: Some(0), stop: &[] };
    let mut sampler = Sampler::new(Params::default());
    let tokenizer = &loaded.texts.tokenizer;
    generation::generate(&mut loaded.engine, origin, tokenizer, &mut sampler, &request, &mut on_event)
}

fn warn_full(args: &RunArgs, context_tokens: usize, terminal: &Terminal) {
    terminal.warn(&match args.cache.on_full {
        OnFullName::Stop => format!(
            "the context of {context_tokens} tokens is full: the answer is cut off (-c sets its size, --on-full evict \
             goes on without the oldest tokens)"
        ),
        OnFullName::Evict => format!(
            "the context of {context_tokens} tokens is full and --keep leaves nothing to forget: the answer is cut off \
             (-c sets its size)"
        ),
    });
}

/// Generates, streaming the text unless it goes into JSON.
fn answer(
    args: &RunArgs,
    prompt: &Prompt,
    sequence: SequenceId,
    loaded: &mut Loaded,
    sampler: &mut Sampler,
    terminal: &mut Terminal,
) -> anyhow::Result<Completion> {
    let interrupts = Interrupts::catch();
    let stops = args.generation.stops();
    let room = loaded.engine.context_tokens() - prompt.ids.len();
    let max_tokens = args.generation.max_tokens_within(room);
    let request = Request { prompt: &prompt.ids, max_tokens, stop: &stops };
    let mut notices = Notices::new(loaded.engine.context_tokens());
    let mut progress = Some(terminal.progress_tokens("reading the prompt", prompt.ids.len()));
    let (mut written, mut shown) = (Ok(()), false);
    let mut on_event = |event: Event| {
        match event {
            Event::Prefill { done, .. } => {
                progress.iter_mut().for_each(|bar| bar.set(done as u64));
            }
            Event::Text(text) => {
                progress = None;
                if !args.json && !text.is_empty() {
                    shown = true;
                    written = terminal.write_text(text);
                }
            }
            Event::Notice(notice) => notices.tell(notice, shown, terminal),
        }
        if written.is_err() || interrupts.pending() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    };
    let tokenizer = &loaded.texts.tokenizer;
    let completion = generation::generate(&mut loaded.engine, sequence, tokenizer, sampler, &request, &mut on_event);
    written?;
    if completion.is_err() && shown {
        terminal.write_text("\n")?;
    }
    completion
}

impl Answer {
    fn to_json(&self) -> serde_json::Value {
        let completion = &self.completion;
        let finish_reason = match completion.finish_reason {
            FinishReason::Stop => "stop",
            FinishReason::Length => "length",
            FinishReason::Interrupted => "interrupted",
        };
        json!({
            "text": completion.text,
            "finish_reason": finish_reason,
            "prompt_tokens": completion.prompt_tokens,
            "cached_tokens": completion.cached_tokens,
            "completion_tokens": completion.ids.len(),
            "prefill_tokens_per_second": completion.prefill_tokens_per_second(),
            "decode_tokens_per_second": completion.decode_tokens_per_second(),
            "seed": self.seed,
        })
    }
}

fn stats(loaded: &Loaded, completion: &Completion, seed: u64) -> String {
    format!(
        "load {:.2} s; prompt {} ({} cached) in {:.2} s, {:.1} tokens/s; answer {} in {:.2} s, {:.1} tokens/s; \
         seed {seed}",
        loaded.load_seconds,
        counted(completion.prompt_tokens, "token"),
        completion.cached_tokens,
        completion.prefill_seconds,
        completion.prefill_tokens_per_second(),
        counted(completion.ids.len(), "token"),
        completion.decode_seconds,
        completion.decode_tokens_per_second(),
    )
}
