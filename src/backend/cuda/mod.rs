//! The CUDA backend: the layers of a model that lie on a GPU, their part of the paged KV cache, and the output head.
//!
//! Read `decoder.rs` for the stages and kernels/README.md for the kernels behind them. A decode step is one copy to the
//! device, one replay of a captured graph, and one copy back.

mod attend;
mod buffers;
mod decoder;
mod driver;
pub mod forms;
mod params;
mod pool;
mod products;
mod repack;
mod step;
mod watch;
mod weights;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context, Result, bail};

use super::cpu::{self, Activations, ScratchBytes, Widths};
use super::{Backend, Batch, Best, Gpu, Info, Input, Output, Part, Profile, Stopwatch, Tap, Want};
use crate::kv::layout::{BLOCK_TOKENS, BlockId, KvType, Layout};
use crate::model::Model;
use attend::Attend;
use buffers::{Buffers, Sizes, most_spans};
use decoder::Launches;
use driver::{Buffer, Device, Graph, Pinned};
use pool::Pool;
use products::Products;
use step::{Kind, PREFILL_QUERIES, Pass, Shape, Staging, passes};
use watch::Watch;
use weights::Weights;

pub use driver::{DeviceInfo, Unavailable, Usable, device};

/// What tests of single kernels need; nothing else outside this room does.
#[doc(hidden)]
pub mod testing {
    pub use super::attend::*;
    pub use super::driver::{Buffer, Device, Kernel, KernelArgs, blocks};
    pub use super::forms::{Form, Layout, PLANES};
    pub use super::params::*;
    pub use super::products::*;
    pub use super::repack::repack;
}

/// Heads that attention's kernels are written for: whole groups of 32 elements, one thread an element.
const HEAD_DIM_STEP: usize = 32;
const MOST_HEAD_DIM: usize = 256;
/// Decode passes of more tokens run without a graph: they are long enough to hide the launches.
const MOST_GRAPH_TOKENS: usize = 16;
/// Captured steps that are kept; a context that grows without end needs one for each doubling.
const MOST_GRAPHS: usize = 64;
/// Memory that is copied to see how fast it is: far more than any cache.
const MEASURED_BYTES: usize = 256 << 20;

/// Why a model, or what is asked of it, cannot run on a GPU.
pub fn lacks(widths: &Widths, k: KvType, v: KvType, activations: Activations) -> Option<String> {
    let head_dim = widths.head_dim;
    if widths.n_experts > 0 {
        Some("models of experts run on the CPU only".to_string())
    } else if !head_dim.is_multiple_of(HEAD_DIM_STEP) || head_dim > MOST_HEAD_DIM {
        Some(format!("heads of {head_dim} elements run on the CPU only (GPU: multiples of 32 up to 256)"))
    } else if widths.group > PREFILL_QUERIES {
        Some(format!("more than {PREFILL_QUERIES} query heads a KV head run on the CPU only"))
    } else if let Some(kv_type) = [k, v].into_iter().find(|kv_type| *kv_type == KvType::F32) {
        Some(format!("KV type {} is for the CPU only (GPU: f16, int8)", kv_type.name()))
    } else if activations != Activations::Int8 {
        Some(format!("{} activations are for the CPU only", activations.name()))
    } else {
        None
    }
}

/// What a part of a model with the head takes on a GPU beside weights and pages.
pub fn scratch_bytes(widths: &Widths, batch_tokens: usize, batch_logits: usize, kv_type_k: KvType) -> ScratchBytes {
    let sizes = Sizes {
        widths: *widths,
        batch_tokens,
        batch_logits: batch_logits.min(batch_tokens),
        has_head: true,
        reads_floats: true,
        int8_queries: kv_type_k == KvType::Int8,
    };
    // Both grow with the context, in powers of two of its spans: twice the least covers them.
    let (short, long) = (1 << 16, 1 << 20);
    let growth = sizes.context_bytes(long) - sizes.context_bytes(short);
    ScratchBytes {
        fixed: sizes.bytes() + sizes.context_bytes(1),
        per_context_token: 2 * growth.div_ceil((long - short) as u64),
    }
}

/// Puts a part of a model on a GPU.
pub fn open(model: Arc<Model>, options: &cpu::Options, gpu: &Gpu, part: Part) -> Result<Box<dyn Backend>> {
    let config = &model.config;
    if let Some(reason) = lacks(&Widths::of(config), options.kv_type_k, options.kv_type_v, options.activations) {
        bail!(reason);
    }
    let device = Device::open(gpu.ordinal)?;
    let kv_heads = &config.kv_heads()[part.layers.clone()];
    let layout = Layout::new(kv_heads, config.head_dim, options.kv_type_k, options.kv_type_v);
    let weights = Weights::upload(&device, &model, &part)?;
    let matrices = part.layers.clone().flat_map(|n| model.layers[n].matrices());
    let head = part.has_head.then_some(&model.output);
    let batch_logits = options.batch_logits.min(options.batch_tokens).min(step::MOST_SEQUENCES);
    let sizes = Sizes {
        widths: Widths::of(config),
        batch_tokens: options.batch_tokens,
        batch_logits,
        has_head: part.has_head,
        reads_floats: matrices.chain(head).any(|linear| !linear.weight.dtype.is_quantized()),
        int8_queries: options.kv_type_k == KvType::Int8,
    };
    let buffers = Buffers::new(&device, &sizes).context("the GPU has no room for the activations of a batch")?;
    let offloaded = part.layers.len() + usize::from(part.has_head);
    let info = Info {
        identity: cpu::identity(&model, &layout, options.activations),
        device: format!("cuda:{} ({}), {offloaded} of {}", gpu.ordinal, device.info.name, config.n_layers + 1),
        threads: 0,
        vocab: config.vocab,
        trained_tokens: config.context_tokens,
        weight_bytes_per_token: model.bytes_per_token_of(part.layers.clone(), part.has_head),
        kv_bytes_per_token: (layout.block_bytes() / BLOCK_TOKENS) as u64,
        block_bytes: layout.block_bytes() as u64,
        block_stride_bytes: layout.device_stride() as u64,
        batch_tokens: options.batch_tokens,
        batch_logits,
    };
    let logits = device.pinned(if part.has_head { batch_logits * config.vocab } else { 0 })?;
    let outputs = Outputs { hidden: Vec::new(), logits, best: Vec::new() };
    Ok(Box::new(Cuda {
        products: Products::new(&device)?,
        attend: Attend::new(&device)?,
        room: Room::new(&device, &model, &sizes, layout, (0, 1))?,
        device,
        model,
        part,
        weights,
        buffers,
        sizes,
        graphs: gpu.graphs.then(HashMap::new),
        outputs,
        info,
        stopwatch: None,
        tap: None,
    }))
}

struct Cuda {
    /// Captured decode steps, unless every step shall be launched anew.
    graphs: Option<HashMap<(Shape, Want), Graph>>,
    products: Products,
    attend: Attend,
    weights: Weights,
    buffers: Buffers,
    room: Room,
    device: Device,
    model: Arc<Model>,
    part: Part,
    sizes: Sizes,
    outputs: Outputs,
    info: Info,
    /// While batches are profiled.
    stopwatch: Option<Stopwatch>,
    tap: Option<Tap>,
}

/// What is made for a number of blocks and a length of context.
struct Room {
    pool: Pool,
    staging: Staging,
    /// (spans, n_heads, head_dim + 2)
    partial: Buffer<f32>,
    most_spans: usize,
}

impl Room {
    fn new(
        device: &Device,
        model: &Model,
        sizes: &Sizes,
        layout: Layout,
        (n_blocks, context_tokens): (usize, usize),
    ) -> Result<Room> {
        Ok(Room {
            pool: Pool::new(device, layout, n_blocks)?,
            staging: Staging::new(device, &model.config, sizes.batch_tokens, context_tokens)?,
            partial: sizes.partial(device, context_tokens)?,
            most_spans: most_spans(context_tokens),
        })
    }
}

/// Results on the host, in the order of the batch.
struct Outputs {
    /// (n, dim)
    hidden: Vec<f32>,
    /// (n_wanted, vocab), where a copy from the device needs no staging
    logits: Pinned<f32>,
    /// (n_wanted)
    best: Vec<Best>,
}

impl Cuda {
    /// One pass to the device and through its layers; nothing is read back yet.
    fn compute(&mut self, batch: &Batch, pass: &Pass, shape: Shape, x: &[f32], want: Want) -> Result<()> {
        let config = &self.model.config;
        self.room.staging.queue(&self.device, (batch, pass, &shape), config, x)?;
        let launches = Launches {
            device: &self.device,
            products: &self.products,
            attend: &self.attend,
            config,
            weights: &self.weights,
            pool: &self.room.pool,
            buffers: &self.buffers,
            partial: &self.room.partial,
            shape,
            data: self.room.staging.data(&shape),
        };
        let is_watched = self.stopwatch.is_some() || self.tap.is_some();
        let may_capture = shape.kind == Kind::Decode && shape.tokens <= MOST_GRAPH_TOKENS && !is_watched;
        let first_layer = self.part.layers.start;
        match self.graphs.as_mut().filter(|_| may_capture) {
            Some(graphs) => {
                if !graphs.contains_key(&(shape, want)) {
                    if graphs.len() >= MOST_GRAPHS {
                        graphs.clear();
                    }
                    let unwatched = &mut Watch { device: &self.device, stopwatch: None, tap: None, first_layer };
                    let graph = self.device.capture(|| launches.run(want, unwatched))?;
                    graphs.insert((shape, want), graph);
                }
                self.device.replay(&graphs[&(shape, want)])
            }
            None => {
                let (stopwatch, tap) = (self.stopwatch.as_ref(), self.tap.as_mut());
                let watch = &mut Watch { device: &self.device, stopwatch, tap, first_layer };
                launches.run(want, watch)?;
                watch.end()
            }
        }
    }

    /// Waits for a pass and puts its results where the batch wants them.
    fn collect(&mut self, pass: &Pass, shape: Shape, want: Want) -> Result<()> {
        let (dim, vocab) = (self.model.config.dim, self.info.vocab);
        let what = format!("a {:?} step of {} tokens", shape.kind, shape.tokens).to_lowercase();
        self.device.synchronize(&what)?;
        match want {
            Want::Hidden => {
                let mut words = vec![0u32; shape.tokens * dim];
                self.device.read(self.room.staging.hidden(), 0, &mut words)?;
                for (words, &token) in words.chunks_exact(dim).zip(&pass.tokens) {
                    let row = &mut self.outputs.hidden[token * dim..][..dim];
                    row.iter_mut().zip(words).for_each(|(x, word)| *x = f32::from_bits(*word));
                }
                Ok(())
            }
            Want::Logits => {
                let logits = self.outputs.logits.as_mut_slice()?;
                for (i, &at) in pass.wanted_at.iter().enumerate() {
                    self.device.read(&self.buffers.logits, i * vocab, &mut logits[at * vocab..][..vocab])?;
                }
                Ok(())
            }
            Want::Best => {
                let mut found = vec![params::Best::default(); shape.wanted];
                self.device.read(&self.buffers.best, 0, &mut found)?;
                for (found, &at) in found.iter().zip(&pass.wanted_at) {
                    self.outputs.best[at] = Best { token: found.id as u32, is_finite: found.finite != 0 };
                }
                Ok(())
            }
        }
    }
}

impl Backend for Cuda {
    fn info(&self) -> &Info {
        &self.info
    }

    fn reserve(&mut self, n_blocks: usize, context_tokens: usize) -> Result<()> {
        let layout = self.room.pool.layout().clone();
        self.room = Room::new(&self.device, &self.model, &self.sizes, layout, (n_blocks, context_tokens))?;
        // They hold addresses of the old room.
        self.graphs.iter_mut().for_each(HashMap::clear);
        Ok(())
    }

    fn run(&mut self, batch: &Batch, input: Input, want: Want) -> Result<Output<'_>> {
        let (n, wanted) = (batch.tokens.len(), batch.wanted.len());
        assert!(n > 0 && n <= self.info.batch_tokens, "a batch of {n} tokens");
        assert!(wanted <= self.info.batch_logits, "{wanted} logits in a batch");
        let Input::Hidden(x) = input else { panic!("the embeddings stay with the host") };
        self.outputs.hidden.resize(n * self.model.config.dim, 0.0);
        self.outputs.best.resize(wanted, Best { token: 0, is_finite: true });
        let before = self.device.launches();
        for pass in passes(batch, self.room.most_spans, self.sizes.widths.group) {
            let shape = pass.shape(batch);
            self.compute(batch, &pass, shape, x, want)?;
            self.collect(&pass, shape, want)?;
        }
        if let Some(stopwatch) = &mut self.stopwatch {
            let part = Part { has_head: want != Want::Hidden, ..self.part.clone() };
            let profile = stopwatch.profile();
            cpu::add_work(profile, (&self.model, &part), self.room.pool.layout(), Activations::Int8, batch);
            profile.launches += self.device.launches() - before;
        }
        Ok(match want {
            Want::Hidden => Output::Hidden(&self.outputs.hidden),
            Want::Logits => Output::Logits(&self.outputs.logits.as_mut_slice()?[..wanted * self.info.vocab]),
            Want::Best => Output::Best(&self.outputs.best),
        })
    }

    fn copy_block(&mut self, from: BlockId, to: BlockId) -> Result<()> {
        self.room.pool.copy(&self.device, from, to)
    }

    /// The pool is one allocation: free blocks stay in it.
    fn release_blocks(&mut self, _: &[BlockId]) {}

    fn read_block(&self, block: BlockId, contents: &mut [u8]) -> Result<()> {
        self.room.pool.read(&self.device, block, contents)
    }

    fn write_block(&mut self, block: BlockId, contents: &[u8]) -> Result<()> {
        self.room.pool.write(&self.device, block, contents)
    }

    fn set_profiling(&mut self, on: bool) {
        self.stopwatch = on.then(Stopwatch::default);
    }

    fn take_profile(&mut self) -> Option<Profile> {
        self.stopwatch.as_mut().map(|stopwatch| std::mem::take(stopwatch.profile()))
    }

    fn set_tap(&mut self, tap: Option<Tap>) {
        self.tap = tap;
    }

    fn measure_bandwidth(&self) -> Result<Option<f64>> {
        const TURNS: usize = 8;
        let half = (MEASURED_BYTES / 2).min(self.device.free_bytes()? / 4);
        let mut buffer = self.device.alloc::<u8>(2 * half)?;
        self.device.copy_within(&mut buffer, 0, half, half)?;
        self.device.synchronize("a copy")?;
        let start = Instant::now();
        for _ in 0..TURNS {
            self.device.copy_within(&mut buffer, 0, half, half)?;
        }
        self.device.synchronize("a copy")?;
        Ok(Some((2 * TURNS * half) as f64 / start.elapsed().as_secs_f64()))
    }
}
