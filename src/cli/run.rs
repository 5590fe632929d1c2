//! `sayfa run`: one prompt, one answer.

use std::ops::ControlFlow;

use anyhow::bail;
use clap::Args;
use serde_json::json;

use super::args::{GenerationArgs, ModelArgs, SamplingArgs, SystemArgs, Talk};
use super::input::{Form, InputArgs};
use super::load::{self, Loaded, Texts};
use super::terminal::{Interrupts, Terminal};
use super::{Ended, Usage, counted};
use crate::generation::{self, Completion, Event, FinishReason, Request};
use crate::sampler::Sampler;
use crate::template::{Message, Prompt, Role, fold_system};
use crate::tokenizer::Special;

#[derive(Debug, Args)]
pub struct RunArgs {
    #[command(flatten)]
    pub model: ModelArgs,
    #[command(flatten)]
    pub input: InputArgs,
    #[command(flatten)]
    pub system: SystemArgs,

    /// Give the text to the model as it is: no chat template, and names of control tokens in it are control tokens
    #[arg(long, help_heading = "Prompt", conflicts_with_all = ["system", "system_in_user"])]
    pub raw: bool,

    /// Print the prompt's tokens as JSON {text, ids, pieces} instead of answering
    #[arg(long, help_heading = "Prompt")]
    pub dump_prompt: bool,

    #[command(flatten)]
    pub generation: GenerationArgs,
    #[command(flatten)]
    pub sampling: SamplingArgs,

    /// Print one JSON object with the answer, its finish reason, token counts, speeds and the seed
    #[arg(long, help_heading = "Output")]
    pub json: bool,

    /// Times and speeds of loading, prompt and answer, and the seed, on standard error
    #[arg(long, help_heading = "Output")]
    pub stats: bool,

    #[command(flatten)]
    pub talk: Talk,
}

pub fn run(args: &RunArgs, terminal: &mut Terminal) -> anyhow::Result<Ended> {
    let text = args.input.read(Form::Prompt, args.generation.escape, terminal)?.unwrap_or_default();
    if text.is_empty() {
        return Err(Usage("nothing to read: give a prompt with -p, -f or standard input".to_string()).into());
    }
    if args.dump_prompt {
        let texts = Texts::open(args.model.model.as_deref())?;
        let prompt = build_prompt(args, &text, &texts, terminal)?;
        let pieces: Vec<&str> = prompt.ids.iter().map(|&id| texts.tokenizer.piece(id)).collect();
        terminal.write_line(&json!({"text": prompt.text, "ids": prompt.ids, "pieces": pieces}).to_string())?;
        return Ok(Ended::Done);
    }
    let mut loaded = load::load(&args.model, terminal)?;
    let prompt = build_prompt(args, &text, &loaded.texts, terminal)?;
    let (asked, context_tokens) = (prompt.ids.len(), loaded.engine.context_tokens());
    if asked >= context_tokens {
        bail!(
            "the prompt has {}, which leaves no room for an answer in a context of {context_tokens}: \
             shorten it, or raise -c (the model was trained for {})",
            counted(asked, "token"),
            loaded.config.context_tokens
        );
    }
    let mut sampler = Sampler::new(args.sampling.params(&loaded.texts.tokenizer));
    let completion = answer(args, &prompt, &mut loaded, &mut sampler, terminal)?;
    if args.json {
        terminal.write_line(&to_json(&completion, sampler.seed()).to_string())?;
    } else {
        terminal.write_text("\n")?;
    }
    terminal.flush()?;
    if completion.context_full {
        terminal
            .warn(&format!("the context of {context_tokens} tokens is full: the answer is cut off (-c sets its size)"));
    }
    if completion.finish_reason == FinishReason::Length && !completion.context_full {
        terminal.info(&format!("stopped after -n {}", counted(completion.ids.len(), "token")));
    }
    if args.stats {
        terminal.talk(&stats(&loaded, &completion, sampler.seed()));
    }
    Ok(if completion.finish_reason == FinishReason::Interrupted { Ended::Interrupted } else { Ended::Done })
}

/// The user's text, and the system message if any, as the model wants them.
fn build_prompt(args: &RunArgs, text: &str, texts: &Texts, terminal: &Terminal) -> anyhow::Result<Prompt> {
    let plain = |special| -> anyhow::Result<Prompt> {
        Ok(Prompt { text: text.to_string(), ids: texts.tokenizer.encode_with_bos(text, special)? })
    };
    if args.raw {
        return plain(Special::Parse);
    }
    let Some(template) = &texts.template else {
        if args.system.system.is_some() {
            bail!("--system: {} has no chat template, so there is no place for a system message", texts.path.display());
        }
        terminal.warn("the model has no chat template: it continues the text (--raw says that this is meant)");
        return plain(Special::AsText);
    };
    let mut messages = Vec::new();
    if let Some(system) = &args.system.system {
        messages.push(Message { role: Role::System, content: system.clone() });
    }
    messages.push(Message { role: Role::User, content: text.to_string() });
    template.render(&if args.system.system_in_user { fold_system(&messages) } else { messages }, &texts.tokenizer)
}

/// Generates, streaming the text unless it goes into JSON.
fn answer(
    args: &RunArgs,
    prompt: &Prompt,
    loaded: &mut Loaded,
    sampler: &mut Sampler,
    terminal: &mut Terminal,
) -> anyhow::Result<Completion> {
    let interrupts = Interrupts::catch();
    let stops = args.generation.stops();
    let request = Request { prompt: &prompt.ids, max_tokens: args.generation.max_tokens(), stop: &stops };
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
        }
        if written.is_err() || interrupts.pending() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    };
    let sequence = loaded.engine.new_sequence();
    let tokenizer = &loaded.texts.tokenizer;
    let completion = generation::generate(&mut loaded.engine, sequence, tokenizer, sampler, &request, &mut on_event);
    loaded.engine.free_sequence(sequence);
    written?;
    if completion.is_err() && shown {
        terminal.write_text("\n")?;
    }
    completion
}

fn to_json(completion: &Completion, seed: u64) -> serde_json::Value {
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
        "seed": seed,
    })
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
