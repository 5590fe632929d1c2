//! The CPU backend: mapped weights, pages in host memory, a crew of threads, one table of kernels.

mod attention;
mod ceilings;
mod cores;
mod decoder;
mod matmul;
mod ops;
mod pages;
mod simd;
mod threads;
mod work;

use std::sync::{Arc, Mutex};

use anyhow::Result;

use super::{Backend, Batch, Best, Info, Input, Output, Part, Profile, Stopwatch, Tap, Want};
use crate::kv::layout::{BLOCK_TOKENS, BlockId, Half, KvType, Layout};
use crate::model::{Fingerprint, Model};
use crate::quant::activation::Precision;
use attention::{Attention, SPAN_TOKENS};
use decoder::{Buffers, Pass};
use pages::Pages;
use simd::Kernels;
use threads::Team;

pub use ceilings::Meter;
pub use cores::{default_threads, memory_nodes};
pub use decoder::Widths;
pub use simd::Simd;
pub(super) use work::add_batch as add_work;

/// What micro benchmarks need to call kernels one by one; nothing else outside this room does.
#[doc(hidden)]
pub mod kernels {
    pub use super::simd::{Kernels, Queries, SPAN_TOKENS};
    pub use super::threads::{ColumnBlock, Crew, Team};
}

/// The usual `Options::batch_logits`: bounds that buffer to 32 rows of the vocabulary.
pub const BATCH_LOGITS: usize = 32;

/// How the inputs of quantized matrices are multiplied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activations {
    /// As int8 groups of 32: fast, and the default.
    Int8,
    /// In 16 bits (two int8 digits): hardly any error beside that of the weights, at twice the multiplications.
    Int16,
    /// As f32 on dequantized weights: slow. A test setting, in which nothing but the KV cache rounds.
    F32,
}

impl Activations {
    pub const fn name(self) -> &'static str {
        match self {
            Activations::Int8 => "int8",
            Activations::Int16 => "int16",
            Activations::F32 => "f32",
        }
    }

    /// Of the quantized form, which F32 does not use.
    const fn precision(self) -> Precision {
        match self {
            Activations::Int16 => Precision::Int16,
            Activations::Int8 | Activations::F32 => Precision::Int8,
        }
    }
}

#[derive(Clone, Debug)]
pub struct Options {
    /// 0: `default_threads()`.
    pub threads: usize,
    /// `None`: the best table this CPU runs.
    pub simd: Option<Simd>,
    pub kv_type_k: KvType,
    pub kv_type_v: KvType,
    /// Most tokens in one batch.
    pub batch_tokens: usize,
    /// Most tokens of a batch whose logits are wanted.
    pub batch_logits: usize,
    pub activations: Activations,
}

impl Options {
    /// With nothing left to be chosen.
    fn resolved(&self) -> Options {
        let threads = if self.threads == 0 { default_threads() } else { self.threads };
        Options { threads, batch_logits: self.batch_logits.min(self.batch_tokens), ..self.clone() }
    }
}

/// Memory that batches need beside weights and pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScratchBytes {
    /// Allocated at open.
    pub fixed: u64,
    /// Grows with the longest sequence.
    pub per_context_token: u64,
}

/// What a backend opened like this would allocate.
pub fn scratch_bytes(widths: &Widths, options: &Options) -> ScratchBytes {
    let per_span = Attention::bytes_per_span(widths.n_heads, widths.head_dim);
    ScratchBytes {
        fixed: Buffers::bytes(widths, &options.resolved(), true),
        per_context_token: per_span.div_ceil(SPAN_TOKENS as u64),
    }
}

/// Builds the CPU backend of a whole model.
pub fn open(model: Arc<Model>, options: &Options) -> Result<Box<dyn Backend>> {
    let part = Part::whole(model.config.n_layers);
    open_part(model, options, part)
}

/// The same for some of the layers, with or without the head; it can always begin with the embeddings.
pub fn open_part(model: Arc<Model>, options: &Options, part: Part) -> Result<Box<dyn Backend>> {
    let kernels = simd::choose(options.simd)?;
    let options = options.resolved();
    let (threads, batch_logits) = (options.threads, options.batch_logits);
    let team = Team::new(threads)?;
    let config = &model.config;
    let kv_heads = &config.kv_heads()[part.layers.clone()];
    let layout = Layout::new(kv_heads, config.head_dim, options.kv_type_k, options.kv_type_v);
    let info = Info {
        identity: identity(&model, &layout, options.activations),
        device: format!("CPU, {threads} threads, {}", kernels.name),
        threads,
        vocab: config.vocab,
        trained_tokens: config.context_tokens,
        weight_bytes_per_token: model.bytes_per_token_of(part.layers.clone(), part.has_head),
        kv_bytes_per_token: (layout.block_bytes() / BLOCK_TOKENS) as u64,
        block_bytes: layout.block_bytes() as u64,
        block_stride_bytes: layout.block_stride() as u64,
        batch_tokens: options.batch_tokens,
        batch_logits,
    };
    let buffers = Buffers::new(&Widths::of(config), &options, part.has_head);
    let pages = Pages::new(layout, 0)?;
    let activations = options.activations;
    let best = Vec::with_capacity(batch_logits);
    Ok(Box::new(Cpu {
        model,
        part,
        kernels,
        team,
        pages,
        buffers,
        best,
        info,
        activations,
        stopwatch: None,
        tap: None,
    }))
}

/// Of everything beside the tokens that decides the bytes of a block.
pub(super) fn identity(model: &Model, layout: &Layout, activations: Activations) -> u64 {
    let mut of = Fingerprint::default();
    of.add_number(model.identity());
    for half in [Half::K, Half::V] {
        let kv_type = layout.row_type(half);
        of.add(kv_type.name().as_bytes());
        of.add_number(kv_type.is_rotated().into());
    }
    of.add_number(match activations {
        Activations::F32 => 0,
        Activations::Int8 => 1,
        Activations::Int16 => 2,
    });
    of.finish()
}

struct Cpu {
    model: Arc<Model>,
    part: Part,
    kernels: &'static Kernels,
    team: Team,
    pages: Pages,
    buffers: Buffers,
    /// (n_wanted)
    best: Vec<Best>,
    info: Info,
    activations: Activations,
    /// While batches are profiled.
    stopwatch: Option<Stopwatch>,
    tap: Option<Mutex<Tap>>,
}

impl Backend for Cpu {
    fn info(&self) -> &Info {
        &self.info
    }

    fn reserve(&mut self, n_blocks: usize, _: usize) -> Result<()> {
        self.pages = Pages::new(self.pages.layout().clone(), n_blocks)?;
        Ok(())
    }

    fn run(&mut self, batch: &Batch, input: Input, want: Want) -> Result<Output<'_>> {
        let (n, wanted) = (batch.tokens.len(), batch.wanted.len());
        assert!(n > 0 && n <= self.info.batch_tokens, "a batch of {n} tokens");
        assert!(wanted <= self.info.batch_logits, "{wanted} logits in a batch");
        assert!(self.part.has_head || want == Want::Hidden, "this part of the model has no output head");
        let Cpu { model, part, kernels, team, pages, buffers, stopwatch, tap, .. } = self;
        let (watch, tap) = (stopwatch.as_ref(), tap.as_ref());
        let has_head = want != Want::Hidden;
        team.run(|crew| Pass { model, part, kernels, crew, batch, watch, tap }.run(input, has_head, pages, buffers));
        if let Some(stopwatch) = stopwatch {
            let part = Part { has_head, ..self.part.clone() };
            work::add_batch(stopwatch.profile(), (model, &part), pages.layout(), self.activations, batch);
        }
        let vocab = self.info.vocab;
        Ok(match want {
            Want::Hidden => Output::Hidden(self.buffers.hidden(n * self.model.config.dim)),
            Want::Logits => Output::Logits(self.buffers.logits(wanted * vocab)),
            Want::Best => {
                self.best.clear();
                self.best.extend(self.buffers.logits(wanted * vocab).chunks(vocab).map(Best::of));
                Output::Best(&self.best)
            }
        })
    }

    fn copy_block(&mut self, from: BlockId, to: BlockId) -> Result<()> {
        self.pages.copy(from, to);
        Ok(())
    }

    fn release_blocks(&mut self, blocks: &[BlockId]) {
        self.pages.release(blocks);
    }

    fn read_block(&self, block: BlockId, contents: &mut [u8]) -> Result<()> {
        contents.copy_from_slice(self.pages.block(block));
        Ok(())
    }

    fn write_block(&mut self, block: BlockId, contents: &[u8]) -> Result<()> {
        self.pages.write(block, contents);
        Ok(())
    }

    fn set_profiling(&mut self, on: bool) {
        self.stopwatch = on.then(Stopwatch::default);
    }

    fn take_profile(&mut self) -> Option<Profile> {
        self.stopwatch.as_mut().map(|stopwatch| std::mem::take(stopwatch.profile()))
    }

    fn set_tap(&mut self, tap: Option<Tap>) {
        self.tap = tap.map(Mutex::new);
    }
}
