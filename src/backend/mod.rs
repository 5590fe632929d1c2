//! The seam between the engine and the devices: a backend runs the model's layers for one flat batch.

pub mod cpu;
pub mod cuda;
mod profile;

use std::ops::Range;

use crate::kv::layout::BlockId;
use crate::tokenizer::TokenId;

pub use profile::{Profile, Stage, Stopwatch, Work};

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

pub trait Backend: Send {
    fn info(&self) -> &Info;

    /// Makes room for blocks 0..n_blocks. Called once, before the first batch.
    fn reserve(&mut self, n_blocks: usize) -> anyhow::Result<()>;

    /// Computes a batch, leaving K and V of its tokens in their pages: logits (n_wanted, vocab) f32.
    fn forward(&mut self, batch: &Batch) -> anyhow::Result<&[f32]>;

    /// Copies a whole block.
    fn copy_block(&mut self, from: BlockId, to: BlockId);

    /// Gives back the memory of blocks that nobody owns.
    fn release_blocks(&mut self, blocks: &[BlockId]);

    /// The contents of a block, `Info::block_bytes` long.
    fn read_block(&self, block: BlockId, contents: &mut [u8]);

    /// Puts back what `read_block` gave.
    fn write_block(&mut self, block: BlockId, contents: &[u8]);

    /// Whether batches are timed stage by stage from now on; off at first.
    fn set_profiling(&mut self, _on: bool) {}

    /// What the batches since the last call have added up; `None`: they were not timed.
    fn take_profile(&mut self) -> Option<Profile> {
        None
    }
}
