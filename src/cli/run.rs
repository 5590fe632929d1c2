//! `sayfa run`: one prompt, one answer or several.

use std::ops::ControlFlow;

use anyhow::{bail, ensure};
use clap::Args;
use serde_json::{Value, json};

use super::args::{CacheArgs, GenerationArgs, ModelArgs, OnFullName, SystemArgs, Talk};
use super::constraint::ConstraintArgs;
use super::display::{AnswerView, DisplayArgs};
use super::input::InputArgs;
use super::load::{self, Loaded, Texts};
use super::notices::Notices;
use super::prompt::{self, GapArgs};
use super::report::{self, Answer};
use super::sampling::SamplingArgs;
use super::session::{self, SessionArgs};
use super::terminal::{Interrupts, Terminal};
use super::{Ended, Usage, counted};
use crate::constraint::Constraint;
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

    /// Give the text to the model as it is
    ///
    /// No chat template, and names of control tokens in it are control tokens.
    #[arg(long, help_heading = "Prompt", conflicts_with_all = ["system", "system_file", "system_in_user", "chat_template"])]
    pub raw: bool,

    #[command(flatten)]
    pub gap: GapArgs,

    /// Print the prompt's tokens, do not answer
    ///
    /// One JSON object {text, ids, pieces}.
    #[arg(long, help_heading = "Prompt")]
    pub dump_prompt: bool,

    #[command(flatten)]
    pub generation: GenerationArgs,

    /// Answers to the one prompt
    ///
    /// It is read once; the seeds are --seed, --seed + 1 and so on. A blank line stands between two answers; --json tells
    /// them apart whatever they hold.
    #[arg(long = "n", value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1024), allow_negative_numbers = true, help_heading = "Generation")]
    pub n: u32,

    #[command(flatten)]
    pub sampling: SamplingArgs,
    #[command(flatten)]
    pub constraint: ConstraintArgs,
    #[command(flatten)]
    pub session: SessionArgs,
    #[command(flatten)]
    pub display: DisplayArgs,

    /// Print one JSON object
    ///
    /// The answer, its finish reason, token counts, speeds and the seed; with --n above 1 {completions: [of these]}.
    #[arg(long, help_heading = "Output")]
    pub json: bool,

    /// Print JSON lines while the answer is made
    ///
    /// {"index", "text"} for each token, then the object of --json with its index.
    #[arg(long, help_heading = "Output", conflicts_with = "json")]
    pub stream_json: bool,

    /// Tell in JSON how likely the model found each token
    ///
    /// Of the answer, before any sampling, and the K likeliest in its place. Needs --json or --stream-json.
    #[arg(long, value_name = "K", help_heading = "Output", value_parser = clap::builder::RangedU64ValueParser::<usize>::new().range(0..=1000), allow_negative_numbers = true)]
    pub logprobs: Option<usize>,

    /// Tell times, speeds and the seed on standard error
    ///
    /// Of loading, prompt and answer apart.
    #[arg(long, help_heading = "Output")]
    pub stats: bool,

    #[command(flatten)]
    pub talk: Talk,
}

impl RunArgs {
    /// Whether standard output gets the answer itself and not JSON.
    fn is_text(&self) -> bool {
        !self.json && !self.stream_json
    }
}

pub fn run(args: &RunArgs, terminal: &mut Terminal) -> anyhow::Result<Ended> {
    let asked = prompt::read(args, terminal)?;
    ensure!(
        args.logprobs.is_none() || args.json || args.stream_json,
        Usage("--logprobs says nothing without --json or --stream-json".to_string())
    );
    let constraint = args.constraint.read(terminal)?;
    if args.dump_prompt {
        let texts = Texts::open(args.model.model.as_deref(), args.system.chat_template.as_deref())?;
        let prompt = prompt::build_prompt(args, &asked, &texts, terminal)?;
        let pieces: Vec<&str> = prompt.ids.iter().map(|&id| texts.tokenizer.piece(id)).collect();
        terminal.write_line(&json!({"text": prompt.text, "ids": prompt.ids, "pieces": pieces}).to_string())?;
        return Ok(Ended::Done);
    }
    args.session.check_place()?;
    args.sampling.warn_of_idle(terminal);
    // The prompt stays in a sequence of its own while an answer is drawn in a fork.
    let sequences = if args.n > 1 { 2 } else { 1 };
    let template = args.system.chat_template.as_deref();
    let mut loaded = load::load_for_text(&args.model, &args.cache, sequences, template, terminal)?;
    let (context_tokens, trained) = (loaded.engine.context_tokens(), loaded.config.context_tokens);
    let no_room = |tokens: String| {
        let raise = match context_tokens < trained {
            true => format!(", or raise -c (the model was trained for {trained})"),
            false => " (the model was trained for no more)".to_string(),
        };
        format!(
            "the prompt has {tokens}, which leaves no room for an answer in a context of {context_tokens}: shorten \
             it{raise}"
        )
    };
    // Encoding what can never fit would take minutes and gigabytes.
    let fewest = loaded.texts.tokenizer.fewest_tokens(asked.bytes());
    ensure!(fewest <= context_tokens, no_room(format!("at least {}", counted(fewest, "token"))));
    let prompt = prompt::build_prompt(args, &asked, &loaded.texts, terminal)?;
    let asked = prompt.ids.len();
    loaded.engine.set_on_full(args.cache.on_full_after(asked, context_tokens)?);
    let needed = if loaded.engine.evictable_tokens().is_none() { asked + 1 } else { asked };
    ensure!(needed <= context_tokens, no_room(counted(asked, "token")));
    let constraint = match &constraint {
        Some(asked) => Some((asked.bind(&loaded.texts.tokenizer)?, asked.cut_off())),
        None => None,
    };
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
        let mut params = args.sampling.params(&loaded.texts.tokenizer)?;
        // The first sampler draws the seed that the others count on from.
        let first_seed = answers.first().map(|first: &Answer| first.seed);
        params.seed = first_seed.map_or(params.seed, |first| Some(first.wrapping_add(u64::from(i))));
        let mut sampler = Sampler::new(params);
        sampler.constraint = constraint.as_ref().map(|(constraint, _)| constraint.clone());
        if i > 0 {
            terminal.info(&format!("--- {} of {}, seed {}", i + 1, args.n, sampler.seed()));
            if args.is_text() {
                terminal.write_text("\n")?;
            }
        }
        let sequence = if read.is_some() { loaded.engine.fork(home) } else { home };
        let mut completion = answer(args, i, &prompt, sequence, &mut loaded, &mut sampler, terminal)?;
        if sequence != home {
            loaded.engine.free_sequence(sequence);
        }
        if args.is_text() {
            terminal.write_text("\n")?;
        }
        terminal.flush()?;
        if completion.context_full {
            warn_full(args, context_tokens, terminal);
        } else if completion.finish_reason == FinishReason::Length {
            terminal.info(&format!("stopped after -n {}", counted(completion.ids.len(), "token")));
        }
        let was_interrupted = completion.finish_reason == FinishReason::Interrupted;
        let is_met = sampler.constraint.as_mut().is_none_or(Constraint::is_satisfied);
        if let Some((_, cut_off)) = constraint.as_ref().filter(|_| !is_met && !was_interrupted) {
            terminal.warn(cut_off);
        }
        if let (0, Some(read)) = (i, &read) {
            // The one reading of the prompt stands with the first answer.
            completion.cached_tokens = read.cached_tokens;
            completion.prefill_seconds += read.prefill_seconds;
        }
        let answer = Answer { completion, seed: sampler.seed() };
        if args.stream_json {
            let mut line = answer.to_json(&loaded.texts.tokenizer);
            line.insert("index".to_string(), i.into());
            terminal.write_line(&Value::Object(line).to_string())?;
        }
        answers.push(answer);
        if was_interrupted {
            break;
        }
    }
    if args.json {
        let mut all: Vec<_> = answers.iter().map(|answer| answer.to_json(&loaded.texts.tokenizer)).collect();
        let report = if args.n == 1 { Value::Object(all.remove(0)) } else { json!({ "completions": all }) };
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
    let request = Request { prompt: &prompt.ids, max_tokens: Some(0), stop: &[], logprobs: None };
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

/// Generates, and streams the text as the flags want it.
fn answer(
    args: &RunArgs,
    index: u32,
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
    let request = Request { prompt: &prompt.ids, max_tokens, stop: &stops, logprobs: args.logprobs };
    let mut notices = Notices::new(loaded.engine.context_tokens());
    let mut progress = Some(terminal.progress_tokens("reading the prompt", prompt.ids.len()));
    let tokenizer = &loaded.texts.tokenizer;
    let mut view = AnswerView::new(args.display, &prompt.text, terminal);
    let (mut written, mut chosen) = (Ok(()), None);
    let mut on_event = |event: Event| {
        match event {
            Event::Prefill { done, .. } => {
                progress.iter_mut().for_each(|bar| bar.set(done as u64));
            }
            Event::Chosen(logprobs) => chosen = Some(report::logprobs(logprobs, tokenizer)),
            Event::Text(text) => {
                progress = None;
                let chosen = chosen.take();
                if args.stream_json && (!text.is_empty() || chosen.is_some()) {
                    let mut line = json!({ "index": index, "text": text });
                    if let Some(chosen) = chosen {
                        line["logprobs"] = chosen;
                    }
                    written = terminal.write_line(&line.to_string());
                } else if args.is_text() {
                    written = view.write(text, terminal);
                }
            }
            Event::Notice(notice) => notices.tell(notice, view.is_shown(), terminal),
        }
        if written.is_err() || interrupts.pending() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    };
    let completion = generation::generate(&mut loaded.engine, sequence, tokenizer, sampler, &request, &mut on_event);
    let shown = view.is_shown();
    written.and_then(|()| view.end(terminal))?;
    if completion.is_err() && shown {
        terminal.write_text("\n")?;
    }
    completion
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
