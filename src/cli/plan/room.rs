//! The plan of a model that is about to be loaded: how much context there is room for, or the reason against it.

use anyhow::bail;

use super::question::{Question, host_memory, model_sizes};
use crate::backend::cpu::Widths;
use crate::cli::args::ModelArgs;
use crate::cli::machine::{Memory, mib};
use crate::cli::terminal::Terminal;
use crate::gguf::Gguf;
use crate::kv::plan::{Demand, KvTypes};
use crate::model::Config;

/// Sizes of an engine that this machine has room for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Room {
    /// What -c says if it fits, else the smaller of the trained context and what fits.
    pub context_tokens: usize,
    /// Up to one context more, in what is left.
    pub cache_tokens: usize,
}

/// `threads`: that will really be used; `sequences`: that must be able to be full at once.
pub fn room(
    args: &ModelArgs,
    (threads, sequences): (usize, usize),
    gguf: &Gguf,
    config: &Config,
    terminal: &Terminal,
) -> anyhow::Result<Room> {
    let (k, v) = args.kv_types();
    let demand = Demand {
        context_tokens: 0,
        sequences,
        cache_tokens: 0,
        kv_types: KvTypes { k, v },
        scratch_bytes: 0,
        scratch_bytes_per_token: 0,
    };
    let question = Question {
        name: String::new(),
        trained_tokens: config.context_tokens,
        sizes: model_sizes(gguf, config),
        widths: Widths::of(config),
        demand,
        batch_tokens: args.batch_size,
        activations: args.activations.into(),
        threads,
        cache_is_fixed: false,
        vram: None,
        ram: host_memory(),
    };
    choose(args, &question, terminal)
}

fn choose(args: &ModelArgs, question: &Question, terminal: &Terminal) -> anyhow::Result<Room> {
    let (trained, most) = (question.trained_tokens, question.most_context());
    let Memory { bytes, limit } = question.ram;
    let context_tokens = match args.ctx_size {
        None if most < trained && !args.force => most,
        None | Some(0) => trained,
        Some(wanted) => wanted,
    };
    let asked = question.changed(|demand| demand.context_tokens = context_tokens.max(1));
    let needed = asked.devices().iter().map(|device| device.needed()).max().unwrap_or(0);
    if needed > bytes && !args.force {
        let with_int8 = question.with_int8().map_or(0, |int8| int8.most_context());
        let advice = match (most, with_int8) {
            (0, 0) => format!("free some memory, or take a smaller -b than {}", args.batch_size),
            (0, _) => format!("take --kv-type int8 with at most -c {with_int8}"),
            _ if with_int8 > most => format!("take at most -c {most} (-c {with_int8} with --kv-type int8)"),
            _ => format!("take at most -c {most}"),
        };
        let asker = args.ctx_size.map_or("default context".to_string(), |wanted| format!("-c {wanted}"));
        bail!(
            "{asker}: {} tokens need {} ({} of them KV cache), but {limit} leaves {}: {advice}, or insist with --force",
            asked.demand.context_tokens,
            mib(needed),
            mib(asked.devices().iter().map(|device| device.part.kv_bytes(&device.demand)).sum()),
            mib(bytes)
        );
    }
    match args.ctx_size {
        None if context_tokens < trained => {
            terminal.info(&format!("context: {most} tokens, what fits ({limit}); the model was trained for {trained}"));
        }
        None => terminal.info(&format!("context: {trained} tokens, as the model was trained for")),
        Some(_) => {}
    }
    Ok(Room { context_tokens, cache_tokens: asked.cache_tokens() })
}
