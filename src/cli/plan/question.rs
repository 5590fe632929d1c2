//! What is asked of which machine, and how it is shared out among devices.

use anyhow::bail;

use super::PlanArgs;
use crate::backend::cpu::{self, ScratchBytes, Widths};
use crate::backend::cuda;
use crate::cli::machine::{self, Memory, size};
use crate::cli::models;
use crate::gguf::{Gguf, Tensor};
use crate::kv::layout::KvType;
use crate::kv::plan::{Demand, KvTypes, LayerSizes, ModelSizes, Part};
use crate::model::{Config, RopeOverrides};

/// What the program itself takes on the host: code and text, and the vocabulary for each of its tokens.
const PROGRAM_BYTES: u64 = 24 << 20;
const PROGRAM_BYTES_PER_WORD: u64 = 512;
/// Longest context that any flag accepts.
pub const MOST_CONTEXT: usize = 1 << 31;
/// Contexts shorter than this are no advice.
pub const LEAST_CONTEXT: usize = 512;

const INT8: KvTypes = KvTypes { k: KvType::Int8, v: KvType::Int8 };

#[derive(Clone)]
pub struct Question {
    pub name: String,
    pub trained_tokens: usize,
    pub sizes: ModelSizes,
    pub widths: Widths,
    /// Without scratch, which depends on the device.
    pub demand: Demand,
    pub batch_tokens: usize,
    pub activations: cpu::Activations,
    /// 0: as many as the CPU backend takes by itself.
    pub threads: usize,
    /// Cached tokens were asked for; else they take what is left.
    pub cache_is_fixed: bool,
    pub gpu: Option<Gpu>,
    pub ram: Memory,
}

/// A GPU, as far as a plan is concerned.
#[derive(Clone)]
pub struct Gpu {
    /// For people.
    pub name: String,
    /// What may be taken of it.
    pub memory: Memory,
    /// How many of the last layers and the head it gets.
    pub layers: usize,
}

/// One device and its part.
pub struct Device {
    pub name: &'static str,
    pub part: Part,
    pub demand: Demand,
    pub memory: Memory,
}

/// A change that makes it fit.
pub struct Way {
    pub change: String,
    pub effect: String,
}

impl Device {
    pub fn needed(&self) -> u64 {
        self.part.needed(&self.demand)
    }

    pub fn fits(&self) -> bool {
        self.needed() <= self.memory.bytes
    }

    pub fn most_context(&self) -> usize {
        self.part.most_context(&self.demand, self.memory.bytes)
    }

    /// With weights that are read for every token, mapped or not.
    pub fn fits_in_memory(&self) -> bool {
        let mapped = if self.part.is_mapped && self.part.computes { self.part.weights_bytes } else { 0 };
        self.needed().saturating_add(mapped) <= self.memory.bytes
    }
}

/// The smallest of what the devices allow.
pub fn least(devices: &[Device], most: impl Fn(&Part, &Demand, u64) -> usize) -> usize {
    let each = devices.iter().map(|device| most(&device.part, &device.demand, device.memory.bytes));
    each.min().unwrap_or(0).min(MOST_CONTEXT)
}

/// What this machine can give, if it tells.
pub fn host_memory() -> Memory {
    machine::available_memory().unwrap_or(Memory { bytes: u64::MAX, limit: "unknown" })
}

/// The sizes of a file's model, from its header.
pub fn model_sizes(gguf: &Gguf, config: &Config) -> ModelSizes {
    let layers = config.layers.iter().map(|layer| LayerSizes { n_kv_heads: layer.n_kv_heads, ..LayerSizes::default() });
    let mut sizes = ModelSizes {
        embedding_bytes: 0,
        head_bytes: 0,
        gpu_head_bytes: 0,
        layers: layers.collect(),
        head_dim: config.head_dim,
    };
    let is_tied = gguf.tensor("output.weight").is_none();
    let mut not_held = 0;
    for tensor in gguf.tensors() {
        let layer = tensor.name.strip_prefix("blk.").and_then(|rest| rest.split('.').next()?.parse::<usize>().ok());
        let (on_host, on_gpu) = match layer.map(|layer| sizes.layers.get_mut(layer)) {
            None if tensor.name == "token_embd.weight" => {
                (&mut sizes.embedding_bytes, if is_tied { &mut sizes.gpu_head_bytes } else { &mut not_held })
            }
            None => (&mut sizes.head_bytes, &mut sizes.gpu_head_bytes),
            Some(Some(layer)) => (&mut layer.weights_bytes, &mut layer.gpu_bytes),
            Some(None) => continue,
        };
        *on_host = on_host.saturating_add(tensor.size_bytes());
        *on_gpu = on_gpu.saturating_add(gpu_bytes(tensor));
    }
    sizes
}

/// A tensor as it lies on a GPU: vectors in f32, matrices in a form of its own.
fn gpu_bytes(tensor: &Tensor) -> u64 {
    let size = |elements: u64| usize::try_from(elements).unwrap_or(usize::MAX);
    match tensor.dims[..] {
        [] => 0,
        [elements] => elements.saturating_mul(4),
        [cols, ref rows @ ..] => {
            let rows = rows.iter().fold(1u64, |product, &dim| product.saturating_mul(dim));
            cuda::forms::device_bytes(tensor.dtype, size(rows), size(cols))
        }
    }
}

impl Question {
    pub fn new(args: &PlanArgs) -> anyhow::Result<Question> {
        let (name, trained_tokens, sizes, widths) = match &args.shape {
            Some((name, shape)) => {
                let name = format!("{name} in {}", args.weights.name());
                (name, shape.context, shape.sizes(args.weights), shape.widths())
            }
            None => {
                let found = models::find(args.model.as_deref())?;
                let gguf = found.explain(Gguf::open(&found.path).map_err(anyhow::Error::from))?;
                let config = found.explain(Config::from_gguf(&gguf, &RopeOverrides::default()))?;
                if gguf.tensor("token_embd.weight").is_none() {
                    bail!("{}: the file holds no weights, so there is nothing to plan", found.shown());
                }
                (found.name, config.context_tokens, model_sizes(&gguf, &config), Widths::of(&config))
            }
        };
        let k: KvType = args.kv_type_k.unwrap_or(args.kv_type).into();
        let v = args.kv_type_v.unwrap_or(args.kv_type).into();
        let demand = Demand {
            context_tokens: if args.ctx_size == 0 { trained_tokens } else { args.ctx_size },
            sequences: args.sequences,
            cache_tokens: args.cache_tokens.unwrap_or(0),
            kv_types: KvTypes { k, v },
            scratch_bytes: 0,
            scratch_bytes_per_token: 0,
        };
        Ok(Question {
            name,
            trained_tokens,
            sizes,
            widths,
            demand,
            batch_tokens: args.batch_size,
            activations: cpu::Activations::Int8,
            threads: 0,
            cache_is_fixed: args.cache_tokens.is_some(),
            gpu: None,
            ram: args.ram.map_or_else(host_memory, |bytes| Memory { bytes, limit: "--ram" }),
        })
    }

    /// The GPU's part, if there is one, and the host's.
    pub fn devices(&self) -> Vec<Device> {
        self.split(self.gpu_layers())
    }

    /// What bounds the memory of a device, for people.
    pub fn limit_of(&self, device: &Device) -> String {
        match &self.gpu {
            Some(gpu) if !device.part.is_mapped => gpu.name.clone(),
            _ => device.memory.limit.to_string(),
        }
    }

    /// How many of the layers and the head are to be on the GPU.
    pub fn gpu_layers(&self) -> usize {
        self.gpu.as_ref().map_or(0, |gpu| gpu.layers)
    }

    /// The same with so many of them there.
    pub fn with_gpu_layers(&self, layers: usize) -> Question {
        let mut changed = self.clone();
        changed.gpu.iter_mut().for_each(|gpu| gpu.layers = layers);
        changed
    }

    /// The most of the layers and the head that fit the GPU; 0 if none does, or there is no GPU.
    pub fn most_gpu_layers(&self) -> usize {
        let gpu = self.split(self.sizes.offloadable()).into_iter().find(|device| !device.part.is_mapped);
        gpu.map_or(0, |gpu| self.sizes.most_on_gpu(&gpu.demand, gpu.memory.bytes))
    }

    /// The last `n` of the layers and the head on the GPU.
    pub fn split(&self, n: usize) -> Vec<Device> {
        let types = self.demand.kv_types;
        let scratch = cpu::scratch_bytes(
            &self.widths,
            &cpu::Options {
                threads: self.threads,
                simd: None,
                kv_type_k: types.k,
                kv_type_v: types.v,
                batch_tokens: self.batch_tokens,
                batch_logits: cpu::BATCH_LOGITS,
                activations: self.activations,
            },
        );
        let program = PROGRAM_BYTES + PROGRAM_BYTES_PER_WORD * self.widths.vocab as u64;
        let with = |scratch: ScratchBytes, more: u64| Demand {
            scratch_bytes: scratch.fixed.saturating_add(more),
            scratch_bytes_per_token: scratch.per_context_token,
            ..self.demand
        };
        let gpu = self.gpu.as_ref().map(|gpu| {
            let scratch = cuda::scratch_bytes(&self.widths, self.batch_tokens, cpu::BATCH_LOGITS, types.k);
            Device { name: "GPU", part: self.sizes.on_gpu(n, types), demand: with(scratch, 0), memory: gpu.memory }
        });
        let (part, demand) = (self.sizes.on_host(n, types), with(scratch, program));
        gpu.into_iter().chain([Device { name: "host", part, demand, memory: self.ram }]).collect()
    }

    /// The same with something else asked for.
    pub fn changed(&self, change: impl FnOnce(&mut Demand)) -> Question {
        let mut changed = self.clone();
        change(&mut changed.demand);
        changed
    }

    /// The same with an INT8 cache, unless it has one.
    pub fn with_int8(&self) -> Option<Question> {
        (self.demand.kv_types != INT8).then(|| self.changed(|demand| demand.kv_types = INT8))
    }

    pub fn fits(&self) -> bool {
        self.devices().iter().all(Device::fits)
    }

    pub fn most_context(&self) -> usize {
        least(&self.devices(), Part::most_context)
    }

    /// Tokens kept for reuse: what was asked for, else up to one context in what is left.
    pub fn cache_tokens(&self) -> usize {
        match self.cache_is_fixed {
            true => self.demand.cache_tokens,
            false => least(&self.devices(), Part::most_cache).min(self.demand.context_tokens),
        }
    }

    /// How many of the layers and the head fit the GPU, when not all do and the host has room for the rest.
    pub fn fewer_layers(&self) -> Option<usize> {
        self.devices().first().filter(|device| !device.part.is_mapped && !device.fits())?;
        let n = self.most_gpu_layers();
        (n > 0 && self.split(n).iter().all(Device::fits_in_memory)).then_some(n)
    }

    /// What would make it fit; nothing when it does.
    pub fn ways(&self) -> Vec<Way> {
        let devices = self.devices();
        let mut ways = vec![];
        if devices.iter().all(Device::fits) {
            return ways;
        }
        let mut way = |change: String, effect: String| ways.push(Way { change, effect });
        let context = self.most_context();
        if context > 0 {
            way(format!("-c {context}"), "a shorter context".to_string());
        }
        let sequences = least(&devices, Part::most_sequences);
        if (1..self.demand.sequences).contains(&sequences) {
            way(format!("--sequences {sequences}"), "fewer at once".to_string());
        }
        if self.demand.cache_tokens > 0 && self.changed(|demand| demand.cache_tokens = 0).fits() {
            way(format!("--cache-tokens {}", least(&devices, Part::most_cache)), "less for reuse".to_string());
        }
        if let Some(int8) = self.with_int8() {
            let context = int8.most_context();
            if int8.fits() {
                let needed = int8.devices().iter().fold(0u64, |sum, device| sum.saturating_add(device.needed()));
                way("--kv-type int8".to_string(), format!("needs {}", size(needed)));
            } else if context > 0 {
                way(format!("--kv-type int8 -c {context}"), "a smaller cache".to_string());
            }
        }
        match self.fewer_layers() {
            Some(n) => way(self.layers_on_gpu(n), self.rest_on_host(n)),
            None if ways.is_empty() => ways.extend(self.way_by_everything()),
            None => {}
        }
        ways
    }

    fn layers_on_gpu(&self, n: usize) -> String {
        format!("{n} of {} layers on the GPU", self.sizes.offloadable())
    }

    fn rest_on_host(&self, n: usize) -> String {
        let host = self.split(n).pop().map_or(0, |host| host.part.weights_bytes.saturating_add(host.needed()));
        format!("last ones and head; {} on the host", size(host))
    }

    /// Fewer layers on the GPU and a shorter context together, if need be with an INT8 cache too.
    fn way_by_everything(&self) -> Option<Way> {
        let halves = std::iter::successors(Some(self.demand.context_tokens / 2), |tokens| Some(tokens / 2));
        halves.take_while(|&tokens| tokens >= LEAST_CONTEXT).find_map(|tokens| {
            let shorter = self.changed(|demand| demand.context_tokens = tokens);
            let int8 = shorter.with_int8().map(|int8| (int8, " --kv-type int8"));
            [Some((shorter, "")), int8].into_iter().flatten().find_map(|(question, flag)| {
                let n = question.fewer_layers()?;
                let change = format!("-c {tokens}{flag} and {}", question.layers_on_gpu(n));
                Some(Way { change, effect: question.rest_on_host(n) })
            })
        })
    }

    /// Weights stay in the file, but tokens are slow when memory cannot hold them beside the rest.
    pub fn paging_warning(&self, devices: &[Device]) -> Option<String> {
        let host = devices.last().filter(|host| host.fits() && !host.fits_in_memory())?;
        Some(format!(
            "the host has {} ({}), less than the {} of weights and {} of everything else: each token will read the disk",
            size(host.memory.bytes),
            host.memory.limit,
            size(host.part.weights_bytes),
            size(host.needed())
        ))
    }
}
