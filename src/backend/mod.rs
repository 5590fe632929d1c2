//! The seam between the engine and the devices: a backend runs the model's layers for one flat batch.

pub mod cpu;
pub mod cuda;
mod profile;
mod split;

use std::ops::Range;
use std::sync::Arc;

use crate::kv::layout::BlockId;
use crate::model::Model;
use crate::tokenizer::TokenId;

pub use profile::{Profile, Stage, Stopwatch, Work};
use split::Split;

/// How much of a model a GPU takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gpu {
    pub ordinal: usize,
    /// The last so many of the layers and the output head, which counts as one more.
    pub offloaded: usize,
    /// Whether decode steps are captured and replayed as graphs; off for tests that compare the two.
    pub graphs: bool,
}

/// A backend for a whole model: on the host, or with a part of it on a GPU.
pub fn open(model: Arc<Model>, options: &cpu::Options, gpu: Option<Gpu>) -> anyhow::Result<Box<dyn Backend>> {
    let Some(gpu) = gpu.filter(|gpu| gpu.offloaded > 0) else { return cpu::open(model, options) };
    let n_layers = model.config.n_layers;
    assert!(gpu.offloaded <= n_layers + 1, "{} of {n_layers} layers and the head", gpu.offloaded);
    let first = n_layers + 1 - gpu.offloaded;
    let device = cuda::open(model.clone(), options, &gpu, Part { layers: first..n_layers, has_head: true })?;
    let host = cpu::open_part(model, options, Part { layers: 0..first, has_head: false })?;
    Ok(Box::new(Split::new(host, device)))
}

/// What the engine and the benches need to know of a backend.
#[derive(Clone, Debug)]
pub struct Info {
    /// Of the weights, the RoPE settings, the KV types and their rotation: equal identities give equal blocks.
    pub identity: u64,
    /// For people: device, threads, instruction set.
    pub device: String,
    pub threads: usize,
    pub vocab: usize,
    /// Trained context length.
    pub trained_tokens: usize,
    /// Weights that decoding one token reads.
    pub weight_bytes_per_token: u64,
    /// K and V of one token over all layers.
    pub kv_bytes_per_token: u64,
    /// Payload of a block over all layers.
    pub block_bytes: u64,
    /// Distance between blocks in the pool: what a block really takes.
    pub block_stride_bytes: u64,
    /// Most tokens in a batch, and most of them with logits.
    pub batch_tokens: usize,
    pub batch_logits: usize,
}

/// The tokens of some sequences, computed together. A token's results do not depend on its batch mates.
#[derive(Debug, Default)]
pub struct Batch {
    /// (n)
    pub tokens: Vec<TokenId>,
    /// (n_sequences): one row of consecutive tokens each
    pub rows: Vec<BatchRow>,
    /// Tokens whose logits are wanted, as indices into `tokens`.
    pub wanted: Vec<usize>,
}

/// Consecutive tokens of one sequence.
#[derive(Debug)]
pub struct BatchRow {
    /// Which tokens of the batch.
    pub tokens: Range<usize>,
    /// Tokens of the sequence that are in its pages already.
    pub cached_tokens: usize,
    /// Position of the row's first token: `cached_tokens`, and more after an eviction.
    pub first_position: usize,
    /// Pages of the sequence, with room for the row's tokens.
    pub pages: Vec<BlockId>,
}

/// Where a forward pass begins.
#[derive(Clone, Copy, Debug)]
pub enum Input<'a> {
    /// With the embeddings of the batch's tokens.
    Tokens,
    /// With what the layers before have made of them: (n, dim) f32.
    Hidden(&'a [f32]),
}

/// Where a forward pass ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Want {
    /// Behind the last layer that the backend holds.
    Hidden,
    Logits,
    /// The likeliest token only: a device need not send all logits home.
    Best,
}

/// What a forward pass gives, as wanted.
#[derive(Clone, Copy, Debug)]
pub enum Output<'a> {
    /// (n, dim) f32
    Hidden(&'a [f32]),
    /// (n_wanted, vocab) f32
    Logits(&'a [f32]),
    /// (n_wanted)
    Best(&'a [Best]),
}

/// The likeliest of all tokens, the lower id of equals.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Best {
    pub token: TokenId,
    /// Whether all logits were: a NaN or an infinity leaves no likeliest one.
    pub is_finite: bool,
}

impl Best {
    /// Of the logits (vocab) of one token.
    pub fn of(logits: &[f32]) -> Best {
        let mut best = 0;
        for (token, &logit) in logits.iter().enumerate() {
            if logit > logits[best] {
                best = token;
            }
        }
        Best { token: best as TokenId, is_finite: logits.iter().all(|logit| logit.is_finite()) }
    }
}

impl<'a> Output<'a> {
    pub fn hidden(self) -> &'a [f32] {
        let Output::Hidden(hidden) = self else { panic!("hidden rows were wanted, not {self:?}") };
        hidden
    }

    pub fn logits(self) -> &'a [f32] {
        let Output::Logits(logits) = self else { panic!("logits were wanted, not {self:?}") };
        logits
    }

    pub fn best(self) -> &'a [Best] {
        let Output::Best(best) = self else { panic!("the likeliest tokens were wanted, not {self:?}") };
        best
    }
}

/// Consecutive layers of a model, with or without its output head: what one backend computes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    pub layers: Range<usize>,
    /// The output norm and the output matrix.
    pub has_head: bool,
}

impl Part {
    pub fn whole(n_layers: usize) -> Part {
        Part { layers: 0..n_layers, has_head: true }
    }
}

/// Values at a point of a forward pass, for tests that look inside.
pub enum Tapped<'a> {
    /// (n, cols)
    Floats(&'a mut [f32]),
    /// Rows as int8 levels, and the scales of their groups.
    Levels(&'a mut [i8], &'a mut [f32]),
}

/// Called with the result of a stage and the layer it belongs to. On a GPU what the tap leaves there is what the next
/// stage reads; the CPU shows copies.
pub type Tap = Box<dyn FnMut(Stage, usize, Tapped) + Send>;

pub trait Backend: Send {
    fn info(&self) -> &Info;

    /// Makes room for blocks 0..n_blocks, for sequences of up to `context_tokens`. Called once, before the first batch.
    fn reserve(&mut self, n_blocks: usize, context_tokens: usize) -> anyhow::Result<()>;

    /// Computes a batch, leaving K and V of its tokens in their pages.
    fn run(&mut self, batch: &Batch, input: Input, want: Want) -> anyhow::Result<Output<'_>>;

    /// The usual pass through a whole model: tokens in, logits (n_wanted, vocab) f32 out.
    fn forward(&mut self, batch: &Batch) -> anyhow::Result<&[f32]> {
        Ok(self.run(batch, Input::Tokens, Want::Logits)?.logits())
    }

    /// Copies a whole block.
    fn copy_block(&mut self, from: BlockId, to: BlockId) -> anyhow::Result<()>;

    /// Gives back the memory of blocks that nobody owns.
    fn release_blocks(&mut self, blocks: &[BlockId]);

    /// The contents of a block, `Info::block_bytes` long.
    fn read_block(&self, block: BlockId, contents: &mut [u8]) -> anyhow::Result<()>;

    /// Puts back what `read_block` gave.
    fn write_block(&mut self, block: BlockId, contents: &[u8]) -> anyhow::Result<()>;

    /// Whether batches are timed stage by stage from now on; off at first.
    fn set_profiling(&mut self, _on: bool) {}

    /// What the batches since the last call have added up; `None`: they were not timed.
    fn take_profile(&mut self) -> Option<Profile> {
        None
    }

    /// Bytes a second that a GPU copies in its memory, reads and writes counted; `None` on the host, which has its own
    /// meter.
    fn measure_bandwidth(&self) -> anyhow::Result<Option<f64>> {
        Ok(None)
    }

    /// Looks at the stages of every batch from now on; costs copies, and a wait for each stage on a GPU.
    fn set_tap(&mut self, _tap: Option<Tap>) {}
}
