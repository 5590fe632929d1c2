//! The plan of a model that is about to be loaded: how much context there is room for and how many layers go to the GPU,
//! or the reason against it.

use anyhow::bail;

use super::question::{Device, Gpu, LEAST_CONTEXT, Question, host_memory, model_sizes};
use crate::backend;
use crate::backend::cpu::{Activations, Widths};
use crate::backend::cuda::Usable;
use crate::cli::args::{DEFAULT_BATCH, ModelArgs};
use crate::cli::device::{Found, GpuLayers};
use crate::cli::machine::{Memory, mib, size};
use crate::cli::terminal::Terminal;
use crate::gguf::Gguf;
use crate::kv::layout::KvType;
use crate::kv::plan::{Demand, KvTypes};
use crate::model::Config;

/// Contexts up to this come before layers, where the flags leave both open: layers on the CPU cost every token, a longer
/// context costs memory only.
const CONTEXT_BEFORE_LAYERS: usize = 8192;

/// Sizes of an engine that this machine has room for.
pub struct Room {
    /// What -c says if it fits, else the smaller of the trained context and what fits.
    pub context_tokens: usize,
    /// Up to one context more, in what is left.
    pub cache_tokens: usize,
    /// The GPU, and how many of the last layers and the head go there.
    pub gpu: Option<(Usable, usize)>,
    /// Weights that stay on the host.
    pub host_weights_bytes: u64,
}

impl Room {
    /// How a backend is told of the GPU.
    pub fn backend_gpu(&self) -> Option<backend::Gpu> {
        let (usable, layers) = self.gpu.as_ref()?;
        Some(backend::Gpu { ordinal: usable.info.ordinal, offloaded: *layers, graphs: true })
    }
}

/// What a model would take on the CPU with a usual context, and whether that is there.
pub struct Fit {
    /// Up to `CONTEXT_BEFORE_LAYERS`.
    pub context_tokens: usize,
    pub weights_bytes: u64,
    /// Beside the weights, which stay in the file.
    pub needed_bytes: u64,
    pub memory: Memory,
    pub fits: bool,
    /// The weights too: else every token reads the disk.
    pub fits_with_weights: bool,
}

/// The same arithmetic for a model that nobody loads.
pub fn fit(gguf: &Gguf, config: &Config) -> Fit {
    let (f16, context_tokens) = (KvType::F16, config.context_tokens.min(CONTEXT_BEFORE_LAYERS));
    let question = question(gguf, config, (DEFAULT_BATCH, Activations::Int8, 0), (1, KvTypes { k: f16, v: f16 }));
    let question = question.changed(|demand| demand.context_tokens = context_tokens);
    let devices = question.devices();
    let needed_bytes = devices.iter().fold(0, |sum: u64, device| sum.saturating_add(device.needed()));
    Fit {
        context_tokens,
        weights_bytes: question.sizes.weights_bytes(),
        needed_bytes,
        memory: question.ram,
        fits: question.fits(),
        fits_with_weights: devices.iter().all(Device::fits_in_memory),
    }
}

/// A model on the CPU, with nothing asked of it yet.
fn question(
    gguf: &Gguf,
    config: &Config,
    (batch_tokens, activations, threads): (usize, Activations, usize),
    (sequences, kv_types): (usize, KvTypes),
) -> Question {
    let demand = Demand {
        context_tokens: 0,
        sequences,
        cache_tokens: 0,
        kv_types,
        scratch_bytes: 0,
        scratch_bytes_per_token: 0,
    };
    Question {
        name: String::new(),
        trained_tokens: config.context_tokens,
        sizes: model_sizes(gguf, config),
        widths: Widths::of(config),
        demand,
        batch_tokens,
        activations,
        threads,
        cache_is_fixed: false,
        gpu: None,
        ram: host_memory(),
    }
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
    let how = (args.batch_size, args.activations.into(), threads);
    let mut question = question(gguf, config, how, (sequences, KvTypes { k, v }));
    let (mut gpu, mut note) = (None, None);
    match args.device.find(question.gpu_lacks(), terminal)? {
        Found::Cpu(why) => note = why,
        Found::Gpu(usable) => {
            question.gpu = Some(Gpu::of(&usable.info));
            match gpu_layers(args, &question, terminal)? {
                0 => question.gpu = None,
                layers => {
                    question = question.with_gpu_layers(layers);
                    gpu = Some((usable, layers));
                }
            }
        }
    }
    let (context_tokens, cache_tokens) = choose(args, &question, terminal)?;
    note.iter().for_each(|note| terminal.info(note));
    let host_weights_bytes = question.sizes.on_host(question.gpu_layers(), question.demand.kv_types).weights_bytes;
    Ok(Room { context_tokens, cache_tokens, gpu, host_weights_bytes })
}

/// How many of the layers and the head go to the GPU.
fn gpu_layers(args: &ModelArgs, question: &Question, terminal: &Terminal) -> anyhow::Result<usize> {
    let Some(gpu) = &question.gpu else { return Ok(0) };
    let trained = question.trained_tokens;
    let with = |context_tokens: usize| question.changed(|demand| demand.context_tokens = context_tokens.max(1));
    let (usual, least) = match args.ctx_size {
        Some(0) => (trained, trained),
        Some(wanted) => (wanted, wanted),
        None if args.force => (trained, trained),
        None => (trained.min(CONTEXT_BEFORE_LAYERS), trained.min(LEAST_CONTEXT)),
    };
    let (all, free) = (question.sizes.offloadable(), mib(gpu.memory.bytes));
    let needed = |n: usize, context: usize| mib(with(context).split(n).first().map_or(0, |device| device.needed()));
    let wanted = match args.device.asked_layers() {
        GpuLayers::Auto => {
            let most = with(usual).most_gpu_layers();
            if most == 0 {
                let why = format!(
                    "{} leaves {free}, and the output head alone with its buffers needs {}",
                    gpu.name,
                    needed(1, usual)
                );
                args.device.do_without(&why, terminal)?;
            }
            return Ok(most);
        }
        GpuLayers::All => all,
        GpuLayers::Some(n) => n.min(all),
    };
    let most = with(least).most_gpu_layers();
    if wanted > most && !args.force {
        bail!(
            "--gpu-layers (-ngl) {wanted}: with a context of {least} tokens they need {}, but {} leaves {free}: take at \
             most -ngl {most}, or insist with --force",
            needed(wanted, least),
            gpu.name
        );
    }
    Ok(wanted)
}

/// Tokens of the context and of the cache, for a split that is settled.
fn choose(args: &ModelArgs, question: &Question, terminal: &Terminal) -> anyhow::Result<(usize, usize)> {
    let (trained, most) = (question.trained_tokens, question.most_context());
    let context_tokens = match args.ctx_size {
        None if most < trained && !args.force => most,
        None | Some(0) => trained,
        Some(wanted) => wanted,
    };
    let asked = question.changed(|demand| demand.context_tokens = context_tokens.max(1));
    let devices = asked.devices();
    if let Some(device) = devices.iter().find(|device| !device.fits()).filter(|_| !args.force) {
        let with_int8 = question.with_int8().map_or(0, |int8| int8.most_context());
        let advice = match (most, with_int8) {
            (0, 0) => format!("free some memory, or take a smaller -b than {}", args.batch_size),
            (0, _) => format!("take --kv-type int8 with at most -c {with_int8}"),
            _ if with_int8 > most => format!("take at most -c {most} (-c {with_int8} with --kv-type int8)"),
            _ => format!("take at most -c {most}"),
        };
        let asker = args.ctx_size.map_or("default context".to_string(), |wanted| format!("-c {wanted}"));
        bail!(
            "{asker}: {} tokens need {} ({} of them KV cache), but {} leaves {}: {advice}, or insist with --force",
            asked.demand.context_tokens,
            mib(device.needed()),
            mib(device.part.kv_bytes(&device.demand)),
            asked.limit_of(device),
            mib(device.memory.bytes)
        );
    }
    match args.ctx_size {
        None if context_tokens < trained => {
            let tightest = devices.iter().min_by_key(|device| device.most_context());
            let limit = tightest.map_or(String::new(), |device| asked.limit_of(device));
            terminal.info(&format!("context: {most} tokens, what fits ({limit}); the model was trained for {trained}"));
        }
        None => terminal.info(&format!("context: {trained} tokens, as the model was trained for")),
        Some(_) => {}
    }
    if let Some(gpu) = &asked.gpu {
        for device in devices.iter().filter(|device| !device.part.is_mapped) {
            let (weights, kv) = (size(device.part.weights_bytes), size(device.part.kv_bytes(&device.demand)));
            let (n, all) = (gpu.layers, asked.sizes.offloadable());
            terminal.info(&format!("{}: {n} of {all} layers, {weights} of weights, {kv} of KV cache", gpu.name));
        }
    }
    Ok((context_tokens, asked.cache_tokens()))
}
