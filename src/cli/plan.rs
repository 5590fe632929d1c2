//! `sayfa plan`: what a model and its KV cache take, on each device, before anything is loaded; and the same arithmetic
//! for `run` and `chat`, which refuse with it. Reads no more than a file's header.

use std::fs;
use std::path::PathBuf;

use anyhow::{Context, anyhow, bail};
use clap::Args;
use clap::builder::RangedU64ValueParser;
use serde_json::{Value as Json, json};

use super::args::{KvTypeName, ModelArgs, Talk};
use super::machine::{self, Memory, mib, size};
use super::shapes::{self, Shape, Weights};
use super::simulate::{self, Outcome, Policy};
use super::terminal::Terminal;
use super::{Ended, load};
use crate::backend::cpu::{self, ScratchBytes, Widths};
use crate::gguf::Gguf;
use crate::kv::layout::{BLOCK_TOKENS, KvType};
use crate::kv::plan::{Demand, KvTypes, LayerSizes, ModelSizes, Part};
use crate::model::{Config, RopeOverrides};

/// What the program itself takes: code, vocabulary, text.
const PROGRAM_BYTES: u64 = 32 << 20;
/// Longest context that any flag accepts.
const MOST_CONTEXT: usize = 1 << 31;

#[derive(Debug, Args)]
pub struct PlanArgs {
    /// GGUF file or name, as for the other commands; only its header is read
    #[arg(short, long, value_name = "MODEL", help_heading = "Model")]
    model: Option<PathBuf>,

    /// A published model instead of a file, such as llama-2-13b
    #[arg(long, value_name = "NAME", value_parser = named_shape, conflicts_with = "model", help_heading = "Model")]
    shape: Option<(String, Shape)>,

    /// How the weights of --shape are quantized: a type (f16, q8_0, q4_0 ...) or a mix (q4_k_m, q5_k_m ...)
    #[arg(long, value_name = "TYPE", value_parser = Weights::parse, requires = "shape", default_value = "q4_k_m", help_heading = "Model")]
    weights: Weights,

    /// Context of each sequence in tokens; 0: as many as the model was trained for
    #[arg(short, long, value_name = "N", default_value_t = 0, value_parser = RangedU64ValueParser::<usize>::new().range(0..=MOST_CONTEXT as u64), allow_negative_numbers = true)]
    ctx_size: usize,

    /// Sequences that can be full at once
    #[arg(long, value_name = "S", default_value_t = 1, value_parser = RangedU64ValueParser::<usize>::new().range(1..=1 << 20), allow_negative_numbers = true)]
    sequences: usize,

    /// Tokens of finished text that must stay for reuse
    /// [default: one context, or less if that is all the room there is]
    #[arg(long, value_name = "N", value_parser = RangedU64ValueParser::<usize>::new().range(0..=MOST_CONTEXT as u64), allow_negative_numbers = true)]
    cache_tokens: Option<usize>,

    /// Most prompt tokens computed in one step
    #[arg(short, long, value_name = "N", default_value_t = 512, value_parser = RangedU64ValueParser::<usize>::new().range(1..=65536), allow_negative_numbers = true)]
    batch_size: usize,

    /// How keys and values are kept in the KV cache
    #[arg(long, value_name = "TYPE", value_enum, default_value_t = KvTypeName::F16)]
    kv_type: KvTypeName,

    /// The same for keys alone
    #[arg(long, value_name = "TYPE", value_enum)]
    kv_type_k: Option<KvTypeName>,

    /// The same for values alone
    #[arg(long, value_name = "TYPE", value_enum)]
    kv_type_v: Option<KvTypeName>,

    /// Plan for a GPU with this much free memory, such as 24GiB (1024^3 bytes) or 24GB (1000^3)
    #[arg(long, value_name = "SIZE", value_parser = parse_size, allow_negative_numbers = true, help_heading = "Machine")]
    vram: Option<u64>,

    /// Memory of the host [default: what this machine can give now]
    #[arg(long, value_name = "SIZE", value_parser = parse_size, allow_negative_numbers = true, help_heading = "Machine")]
    ram: Option<u64>,

    /// Run the requests of --trace through the KV memory, reserved for whole contexts and taken in pages
    #[arg(long, requires = "trace", help_heading = "Simulation")]
    simulate: bool,

    /// Requests in the order of arrival, PROMPT_TOKENS ANSWER_TOKENS a line; # starts a comment
    #[arg(long, value_name = "FILE", requires = "simulate", help_heading = "Simulation")]
    trace: Option<PathBuf>,

    /// Print one JSON object; sizes in bytes
    #[arg(long, help_heading = "Output")]
    json: bool,

    #[command(flatten)]
    pub talk: Talk,
}

pub fn plan(args: &PlanArgs, terminal: &mut Terminal) -> anyhow::Result<Ended> {
    let question = Question::new(args)?;
    if let Some(trace) = &args.trace {
        let text = fs::read_to_string(trace).with_context(|| format!("--trace {}", trace.display()))?;
        let requests = simulate::parse(&text).map_err(|error| anyhow!("--trace {}: {error}", trace.display()))?;
        return simulate_trace(args, &question, &requests, terminal);
    }
    let devices = question.devices(question.demand.kv_types);
    if args.json {
        terminal.write_line(&question.to_json(&devices).to_string())?;
    } else {
        for line in question.table(&devices).iter().chain(&question.details(&devices)).chain(&question.advice(&devices))
        {
            terminal.write_line(line)?;
        }
    }
    if let Some(warning) = question.paging_warning(&devices) {
        terminal.warn(&warning);
    }
    match devices.iter().find(|device| !device.fits()) {
        None => Ok(Ended::Done),
        Some(device) => bail!(
            "{} does not fit: {} needs {} and has {} ({})",
            question.name,
            device.name,
            size(device.needed()),
            size(device.memory.bytes),
            device.memory.limit
        ),
    }
}

fn named_shape(name: &str) -> Result<(String, Shape), String> {
    shapes::find(name).map(|shape| (name.to_lowercase(), shape))
}

/// A size with its unit.
fn parse_size(text: &str) -> Result<u64, String> {
    const UNITS: [(&str, u64); 10] = [
        ("KiB", 1 << 10),
        ("MiB", 1 << 20),
        ("GiB", 1 << 30),
        ("TiB", 1 << 40),
        ("KB", 1000),
        ("kB", 1000),
        ("MB", 1_000_000),
        ("GB", 1_000_000_000),
        ("TB", 1_000_000_000_000),
        ("B", 1),
    ];
    let found = UNITS.iter().find_map(|(unit, bytes)| Some((text.strip_suffix(unit)?.trim_end(), *bytes)));
    let is_number = |number: &str| number.chars().all(|c| c.is_ascii_digit() || c == '.');
    let number = found.filter(|(number, _)| is_number(number)).and_then(|(number, _)| number.parse::<f64>().ok());
    match (number, found) {
        (Some(number), Some((_, unit))) if number * unit as f64 >= 1.0 => Ok((number * unit as f64) as u64),
        _ => Err("not a size above 0 with its unit, such as 24GiB (1024^3 bytes) or 24GB (1000^3)".to_string()),
    }
}

/// The sizes of a file's model, from its header.
pub fn model_sizes(gguf: &Gguf, config: &Config) -> ModelSizes {
    let layers = config.layers.iter().map(|layer| LayerSizes { weights_bytes: 0, n_kv_heads: layer.n_kv_heads });
    let mut sizes = ModelSizes {
        embedding_bytes: 0,
        head_bytes: 0,
        is_tied: gguf.tensor("output.weight").is_none(),
        layers: layers.collect(),
        head_dim: config.head_dim,
    };
    for tensor in gguf.tensors() {
        let layer = tensor.name.strip_prefix("blk.").and_then(|rest| rest.split('.').next()?.parse::<usize>().ok());
        let place = match layer {
            _ if tensor.name == "token_embd.weight" => Some(&mut sizes.embedding_bytes),
            Some(layer) => sizes.layers.get_mut(layer).map(|layer| &mut layer.weights_bytes),
            None => Some(&mut sizes.head_bytes),
        };
        if let Some(bytes) = place {
            *bytes = bytes.saturating_add(tensor.size_bytes());
        }
    }
    sizes
}

/// What is planned, for which machine.
struct Question {
    name: String,
    trained_tokens: usize,
    sizes: ModelSizes,
    widths: Widths,
    demand: Demand,
    batch_tokens: usize,
    /// Cached tokens were asked for; else they take what is left.
    cache_is_fixed: bool,
    vram: Option<Memory>,
    ram: Memory,
}

/// One device and its part.
struct Device {
    name: &'static str,
    part: Part,
    demand: Demand,
    memory: Memory,
}

impl Device {
    fn needed(&self) -> u64 {
        self.part.needed(&self.demand)
    }

    fn fits(&self) -> bool {
        self.needed() <= self.memory.bytes
    }
}

/// The smallest of what the devices allow.
fn least(devices: &[Device], most: impl Fn(&Part, &Demand, u64) -> usize) -> usize {
    let each = devices.iter().map(|device| most(&device.part, &device.demand, device.memory.bytes));
    each.min().unwrap_or(0).min(MOST_CONTEXT)
}

fn scratch(widths: &Widths, types: KvTypes, threads: usize, batch_tokens: usize) -> ScratchBytes {
    let options = cpu::Options {
        threads,
        simd: None,
        kv_type_k: types.k,
        kv_type_v: types.v,
        batch_tokens,
        batch_logits: cpu::BATCH_LOGITS,
        activations: cpu::Activations::Int8,
    };
    cpu::scratch_bytes(widths, &options)
}

impl Question {
    fn new(args: &PlanArgs) -> anyhow::Result<Question> {
        let (name, trained_tokens, sizes, widths) = match &args.shape {
            Some((name, shape)) => {
                let name = format!("{name} in {}", args.weights.name());
                (name, shape.context, shape.sizes(args.weights), shape.widths())
            }
            None => {
                let gguf = Gguf::open(&load::find_model(args.model.as_deref())?)?;
                let config = Config::from_gguf(&gguf, &RopeOverrides::default())?;
                if gguf.tensor("token_embd.weight").is_none() {
                    bail!("{}: the file holds no weights, so there is nothing to plan", gguf.path().display());
                }
                let name = gguf.path().file_name().unwrap_or(gguf.path().as_os_str()).to_string_lossy().into_owned();
                (name, config.context_tokens, model_sizes(&gguf, &config), Widths::of(&config))
            }
        };
        let kv_types = KvTypes {
            k: args.kv_type_k.unwrap_or(args.kv_type).into(),
            v: args.kv_type_v.unwrap_or(args.kv_type).into(),
        };
        let demand = Demand {
            context_tokens: if args.ctx_size == 0 { trained_tokens } else { args.ctx_size },
            sequences: args.sequences,
            cache_tokens: args.cache_tokens.unwrap_or(0),
            kv_types,
            scratch_bytes: 0,
            scratch_bytes_per_token: 0,
        };
        let asked = |bytes, limit| Memory { bytes, limit };
        let unknown = Memory { bytes: u64::MAX, limit: "unknown" };
        Ok(Question {
            name,
            trained_tokens,
            sizes,
            widths,
            demand,
            batch_tokens: args.batch_size,
            cache_is_fixed: args.cache_tokens.is_some(),
            vram: args.vram.map(|bytes| asked(bytes, "--vram")),
            ram: args.ram.map(|bytes| asked(bytes, "--ram")).or_else(machine::available_memory).unwrap_or(unknown),
        })
    }

    /// Everything on the GPU but the embedding table, or everything on the host.
    fn devices(&self, types: KvTypes) -> Vec<Device> {
        match self.vram {
            Some(_) => self.split(self.sizes.offloadable(), types),
            None => self.split(0, types),
        }
    }

    /// The last `n` of the layers and the head on the GPU.
    fn split(&self, n: usize, types: KvTypes) -> Vec<Device> {
        let scratch = scratch(&self.widths, types, 0, self.batch_tokens);
        let demand = Demand {
            kv_types: types,
            scratch_bytes: scratch.fixed,
            scratch_bytes_per_token: scratch.per_context_token,
            ..self.demand
        };
        let part = self.sizes.on_gpu(n, types);
        let gpu = self.vram.map(|memory| Device { name: "GPU", part, demand, memory });
        let demand = Demand { scratch_bytes: scratch.fixed + PROGRAM_BYTES, ..demand };
        let part = self.sizes.on_host(n, types);
        gpu.into_iter().chain([Device { name: "host", part, demand, memory: self.ram }]).collect()
    }

    fn int8(&self) -> Option<KvTypes> {
        let int8 = KvTypes { k: KvType::Int8, v: KvType::Int8 };
        (self.demand.kv_types != int8).then_some(int8)
    }

    /// Tokens kept for reuse: what was asked for, else up to one context in what is left.
    fn cache_tokens(&self, devices: &[Device]) -> usize {
        match self.cache_is_fixed {
            true => self.demand.cache_tokens,
            false => least(devices, Part::most_cache).min(self.demand.context_tokens),
        }
    }

    /// How many layers fit the GPU when not all do, and whether the host has room for the rest.
    fn fewer_layers(&self) -> Option<usize> {
        let devices = self.devices(self.demand.kv_types);
        let gpu = devices.first().filter(|device| device.name == "GPU" && !device.fits())?;
        let n = self.sizes.most_on_gpu(&gpu.demand, gpu.memory.bytes);
        (n > 0 && self.split(n, self.demand.kv_types).iter().all(Device::fits)).then_some(n)
    }

    fn paging_warning(&self, devices: &[Device]) -> Option<String> {
        let host = devices.last().filter(|host| host.fits() && host.part.computes)?;
        let left = host.memory.bytes - host.needed();
        (host.part.weights_bytes > left).then(|| {
            format!(
                "the weights on the host ({}) are more than the {} that the rest leaves of {}: each token will read the disk",
                size(host.part.weights_bytes),
                size(left),
                host.memory.limit
            )
        })
    }

    /// One column a device, one row a part.
    fn table(&self, devices: &[Device]) -> Vec<String> {
        let Demand { context_tokens, sequences, .. } = self.demand;
        let plural = if sequences == 1 { "" } else { "s" };
        let kv = kv_name(self.demand.kv_types);
        let mut lines = vec![
            self.name.clone(),
            format!("{sequences} sequence{plural} of {context_tokens} tokens, KV in {kv}"),
            String::new(),
        ];
        let mut row = |label: &str, cell: &dyn Fn(&Device) -> String, note: &str| {
            let cells: String = devices.iter().map(|device| format!("{:>12}", cell(device))).collect();
            lines.push(format!("  {label:<12}{cells}   {note}").trim_end().to_string());
        };
        if devices.len() > 1 {
            row("", &|device| device.name.to_string(), "");
        }
        let bytes = |bytes: u64| if bytes == 0 { "-".to_string() } else { size(bytes) };
        let mapped = match devices.len() {
            1 => "in the mapped file, not counted as needed",
            _ => "host: in the mapped file, not counted",
        };
        row("weights", &|device| bytes(device.part.weights_bytes), mapped);
        row("KV cache", &|device| bytes(device.part.kv_bytes(&device.demand)), "when all sequences are full");
        if self.cache_is_fixed {
            row("reuse", &|device| bytes(device.part.cache_bytes(&device.demand)), "--cache-tokens");
        }
        let note = format!("batches of {} tokens, logits, program", self.batch_tokens);
        row("scratch", &|device| bytes(device.part.scratch_bytes(&device.demand)), &note);
        row("needed", &|device| bytes(device.needed()), "");
        let limits: Vec<&str> = devices.iter().map(|device| device.memory.limit).collect();
        row("there is", &|device| known(device.memory.bytes), &limits.join(", "));
        row(
            "left",
            &|device| match device.fits() {
                true => known(device.memory.bytes - device.needed().min(device.memory.bytes)),
                false => format!("-{}", size(device.needed() - device.memory.bytes)),
            },
            if devices.iter().all(Device::fits) { "it fits" } else { "it does not fit" },
        );
        lines
    }

    /// The KV cache in exact numbers.
    fn details(&self, devices: &[Device]) -> Vec<String> {
        let whole = self.sizes.on_host(0, self.demand.kv_types);
        let blocks = self.demand.sequence_blocks();
        let cached = self.cache_tokens(devices);
        let stride = devices.iter().fold(0, |sum, device| device.part.kv.stride + sum);
        vec![
            String::new(),
            format!("  a token     {} bytes of KV", grouped(whole.kv.per_token)),
            format!(
                "  a block     {BLOCK_TOKENS} tokens, {} bytes; in whole 4 KiB pages {}",
                grouped(whole.kv.per_block),
                grouped(stride)
            ),
            format!(
                "  sequences   {} blocks: {} bytes, as pages {}",
                grouped(blocks),
                grouped(blocks.saturating_mul(whole.kv.per_block)),
                grouped(blocks.saturating_mul(stride))
            ),
            format!(
                "  reuse       up to {} tokens of finished text, {}{}",
                grouped(cached as u64),
                size(crate::kv::plan::blocks(cached).saturating_mul(stride)),
                if self.cache_is_fixed { "" } else { " of what is left" }
            ),
        ]
    }

    /// What else would fit: when it does not, what would help.
    fn advice(&self, devices: &[Device]) -> Vec<String> {
        let int8 = self.int8().map(|types| self.devices(types));
        let context = least(devices, Part::most_context);
        let mut lines = vec![String::new()];
        if devices.iter().all(Device::fits) {
            let trained = grouped(self.trained_tokens as u64);
            let with_int8 = int8.map_or(String::new(), |int8| {
                format!(", {} with --kv-type int8", most(least(&int8, Part::most_context)))
            });
            lines.push(format!("Largest context: {} tokens{with_int8} (trained: {trained})", most(context)));
            return lines;
        }
        lines.push("What would fit:".to_string());
        let mut way = |flags: String, what: String| lines.push(format!("  {flags:<28}{what}"));
        if context > 0 {
            way(format!("-c {context}"), "a shorter context".to_string());
        }
        let sequences = least(devices, Part::most_sequences);
        if (1..self.demand.sequences).contains(&sequences) {
            way(format!("--sequences {sequences}"), "fewer at once".to_string());
        }
        if let Some(int8) = int8 {
            let needed: Vec<String> =
                int8.iter().map(|device| format!("{} {}", device.name, size(device.needed()))).collect();
            let context = least(&int8, Part::most_context);
            if int8.iter().all(Device::fits) {
                way("--kv-type int8".to_string(), format!("needs {}", needed.join(", ")));
            } else if context > 0 {
                way(format!("--kv-type int8 -c {context}"), "a smaller cache".to_string());
            }
        }
        if let Some(n) = self.fewer_layers() {
            let host =
                self.split(n, self.demand.kv_types).pop().map_or(0, |host| host.part.weights_bytes + host.needed());
            let all = self.sizes.offloadable();
            way(
                format!("{n} of {all} layers on the GPU"),
                format!("the last, with the head; {} on the host", size(host)),
            );
        }
        if lines.len() == 2 {
            lines.push("  nothing of this model: more memory is needed".to_string());
        }
        lines
    }

    fn to_json(&self, devices: &[Device]) -> Json {
        let whole = self.sizes.on_host(0, self.demand.kv_types);
        let (demand, cached) = (&self.demand, self.cache_tokens(devices));
        let on = |device: &Device| {
            json!({
                "device": device.name,
                "weights_bytes": device.part.weights_bytes,
                "weights_are_mapped": device.part.is_mapped,
                "kv_bytes": device.part.kv_bytes(&device.demand),
                "scratch_bytes": device.part.scratch_bytes(&device.demand),
                "needed_bytes": device.needed(),
                "available_bytes": device.memory.bytes,
                "limit": device.memory.limit,
                "fits": device.fits(),
            })
        };
        let int8 = self.int8().map(|types| self.devices(types)).map(|devices| {
            json!({
                "fits": devices.iter().all(Device::fits),
                "largest_context_tokens": least(&devices, Part::most_context),
            })
        });
        let gpu_layers = self.vram.map(|_| match devices.iter().all(Device::fits) {
            true => json!(self.sizes.offloadable()),
            false => json!(self.fewer_layers()),
        });
        json!({
            "model": self.name,
            "trained_tokens": self.trained_tokens,
            "context_tokens": demand.context_tokens,
            "sequences": demand.sequences,
            "kv_type_k": demand.kv_types.k.name(),
            "kv_type_v": demand.kv_types.v.name(),
            "weights_bytes": self.sizes.weights_bytes(),
            "kv_bytes_per_token": whole.kv.per_token,
            "block_bytes": whole.kv.per_block,
            "block_stride_bytes": whole.kv.stride,
            "kv_blocks": demand.sequence_blocks(),
            "kv_payload_bytes": demand.sequence_blocks().saturating_mul(whole.kv.per_block),
            "kv_bytes": whole.kv_bytes(demand),
            "cache_tokens": cached,
            "cache_bytes": whole.cache_bytes(&Demand { cache_tokens: cached, ..*demand }),
            "devices": devices.iter().map(on).collect::<Vec<_>>(),
            "fits": devices.iter().all(Device::fits),
            "largest_context_tokens": least(devices, Part::most_context),
            "int8_kv": int8,
            "layers_and_head": self.sizes.offloadable(),
            "gpu_layers_that_fit": gpu_layers,
        })
    }
}

fn kv_name(types: KvTypes) -> String {
    match types.k == types.v {
        true => types.k.name().to_string(),
        false => format!("{} (K) and {} (V)", types.k.name(), types.v.name()),
    }
}

fn known(bytes: u64) -> String {
    if bytes == u64::MAX { "unknown".to_string() } else { size(bytes) }
}

/// A context that may be beyond what any flag takes.
fn most(tokens: usize) -> String {
    if tokens == MOST_CONTEXT { "any".to_string() } else { grouped(tokens as u64) }
}

/// A number with commas.
fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let comma = |i: usize| if i > 0 && (digits.len() - i).is_multiple_of(3) { "," } else { "" };
    digits.char_indices().map(|(i, digit)| format!("{}{digit}", comma(i))).collect()
}

fn simulate_trace(
    args: &PlanArgs,
    question: &Question,
    requests: &[simulate::Request],
    terminal: &mut Terminal,
) -> anyhow::Result<Ended> {
    let trace = args.trace.as_deref().unwrap_or_else(|| "".as_ref()).display();
    let context_tokens = question.demand.context_tokens;
    if let Some(request) = requests.iter().find(|request| request.tokens() > context_tokens) {
        bail!(
            "--trace {trace}: line {}: {} tokens of prompt and {} of answer are more than the context of {context_tokens} (-c)",
            request.line,
            request.prompt_tokens,
            request.answer_tokens
        );
    }
    let devices = question.devices(question.demand.kv_types);
    let device = devices.first().context("there is always the host")?;
    // Weights that are read for every token have to stay in memory, mapped or not.
    let scratch = device.part.scratch_bytes(&device.demand);
    let budget = device.memory.bytes.saturating_sub(device.part.weights_bytes).saturating_sub(scratch);
    let blocks = budget / device.part.kv.stride.max(1);
    let Some(paged) = simulate::simulate(requests, blocks, Policy::Paged) else {
        let most = requests.iter().map(simulate::Request::tokens).max().unwrap_or(0);
        bail!(
            "weights ({}) and scratch ({}) leave {} of {} for KV: {} tokens, but the largest request has {most}",
            size(device.part.weights_bytes),
            size(scratch),
            size(budget),
            device.memory.limit,
            blocks.saturating_mul(BLOCK_TOKENS as u64)
        );
    };
    let reserved = simulate::simulate(requests, blocks, Policy::Reserved { context_tokens });
    if args.json {
        let outcome = |outcome: Outcome| {
            json!({
                "wasted": outcome.wasted,
                "mean_sequences": outcome.mean_sequences,
                "most_sequences": outcome.most_sequences,
                "steps": outcome.steps,
                "put_back": outcome.put_back,
            })
        };
        let json = json!({
            "model": question.name,
            "requests": requests.len(),
            "context_tokens": context_tokens,
            "kv_budget_bytes": budget,
            "kv_budget_tokens": blocks * BLOCK_TOKENS as u64,
            "reserved": reserved.map(outcome),
            "paged": outcome(paged),
        });
        terminal.write_line(&json.to_string())?;
        return Ok(Ended::Done);
    }
    let sum = |tokens: fn(&simulate::Request) -> usize| grouped(requests.iter().map(tokens).sum::<usize>() as u64);
    let lines = [
        format!("{}, KV in {}", question.name, kv_name(question.demand.kv_types)),
        format!(
            "{} requests: {} tokens of prompt, {} of answer",
            requests.len(),
            sum(|request| request.prompt_tokens),
            sum(|request| request.answer_tokens)
        ),
        format!("{} for KV: {} tokens", known(budget), grouped(blocks.saturating_mul(BLOCK_TOKENS as u64))),
        String::new(),
        format!(
            "  {:<26}{:>22}{:>22}",
            "",
            format!("{context_tokens} tokens each"),
            format!("pages of {BLOCK_TOKENS}")
        ),
    ];
    for line in lines {
        terminal.write_line(&line)?;
    }
    let row = |label: &str, cell: fn(&Outcome) -> String| {
        let reserved = reserved.as_ref().map_or("none fits".to_string(), cell);
        format!("  {label:<26}{reserved:>22}{:>22}", cell(&paged))
    };
    terminal.write_line(&row("KV memory wasted", |outcome| format!("{:.1} %", 100.0 * outcome.wasted)))?;
    terminal.write_line(&row("sequences at once, mean", |outcome| format!("{:.1}", outcome.mean_sequences)))?;
    terminal.write_line(&row("sequences at once, most", |outcome| outcome.most_sequences.to_string()))?;
    terminal.write_line(&row("steps until all is done", |outcome| grouped(outcome.steps)))?;
    terminal.write_line(&row("put back for lack of room", |outcome| grouped(outcome.put_back)))?;
    Ok(Ended::Done)
}

/// The sizes of an engine that this machine has room for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Room {
    /// What -c says if it fits, else the smaller of the trained context and what fits.
    pub context_tokens: usize,
    /// Up to one context more, in what is left.
    pub cache_tokens: usize,
}

/// The plan of a model that is about to be loaded on the CPU: how much context, or the reason against it.
pub fn room(args: &ModelArgs, gguf: &Gguf, config: &Config, terminal: &Terminal) -> anyhow::Result<Room> {
    let (k, v) = args.kv_types();
    let memory = machine::available_memory();
    let host = CpuPlan { args, sizes: model_sizes(gguf, config), widths: Widths::of(config), memory };
    host.room(config.context_tokens, KvTypes { k, v }, terminal)
}

struct CpuPlan<'a> {
    args: &'a ModelArgs,
    sizes: ModelSizes,
    widths: Widths,
    memory: Option<Memory>,
}

impl CpuPlan<'_> {
    fn part(&self, context_tokens: usize, kv_types: KvTypes) -> (Part, Demand) {
        let scratch = scratch(&self.widths, kv_types, self.args.threads, self.args.batch_size);
        let demand = Demand {
            context_tokens,
            sequences: 1,
            cache_tokens: 0,
            kv_types,
            scratch_bytes: scratch.fixed + PROGRAM_BYTES,
            scratch_bytes_per_token: scratch.per_context_token,
        };
        (self.sizes.on_host(0, kv_types), demand)
    }

    fn room(&self, trained: usize, types: KvTypes, terminal: &Terminal) -> anyhow::Result<Room> {
        let Memory { bytes, limit } = self.memory.unwrap_or(Memory { bytes: u64::MAX, limit: "" });
        let fits = |types| {
            let (part, demand) = self.part(0, types);
            part.most_context(&demand, bytes)
        };
        let most = fits(types);
        let context_tokens = match self.args.ctx_size {
            None if most == 0 => {
                let (part, demand) = self.part(1, types);
                bail!(
                    "no room for any context: the first tokens need {}, but {limit} leaves {}",
                    mib(part.needed(&demand)),
                    mib(bytes)
                )
            }
            None if most < trained => {
                terminal
                    .info(&format!("context: {most} tokens, what fits ({limit}); the model was trained for {trained}"));
                most
            }
            None => {
                terminal.info(&format!("context: {trained} tokens, as the model was trained for"));
                trained
            }
            Some(0) => trained,
            Some(wanted) => wanted,
        };
        let (part, demand) = self.part(context_tokens, types);
        let needed = part.needed(&demand);
        if needed > bytes && !self.args.force {
            let kv = mib(part.kv_bytes(&demand));
            let wanted = self.args.ctx_size.unwrap_or(0);
            let int8 = KvTypes { k: KvType::Int8, v: KvType::Int8 };
            let with_int8 = match fits(int8) {
                more if more > most => format!(" (-c {more} with --kv-type int8)"),
                _ => String::new(),
            };
            bail!(
                "-c {wanted}: {context_tokens} tokens need {} ({kv} of KV cache), but {limit} leaves {}: take at most \
                 -c {most}{with_int8}, or insist with --force",
                mib(needed),
                mib(bytes)
            );
        }
        Ok(Room { context_tokens, cache_tokens: part.most_cache(&demand, bytes).min(context_tokens) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_a_unit() {
        assert_eq!(parse_size("24GiB"), Ok(24 << 30));
        assert_eq!(parse_size("24GB"), Ok(24_000_000_000));
        assert_eq!(parse_size("1.5 MiB"), Ok(3 << 19));
        assert_eq!(parse_size("512B"), Ok(512));
        for text in ["24Gib", "24", "0", "0GiB", "-1", "-1GiB", "GiB", "1e3GiB", "infGiB", "nanB", "1..5GB", "", "24 G"]
        {
            assert!(parse_size(text).is_err_and(|error| error.contains("24GiB")), "{text:?}");
        }
        assert_eq!(parse_size("99999999999999TiB"), Ok(u64::MAX));
    }

    #[test]
    fn long_numbers_have_commas() {
        let texts = [0, 7, 123, 1234, 819_200, 1_000_000_000].map(grouped);
        assert_eq!(texts, ["0", "7", "123", "1,234", "819,200", "1,000,000,000"]);
    }
}
