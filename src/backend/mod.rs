//! The seam between the engine and the devices: a backend runs the model's layers for one flat batch.

pub mod cpu;

use std::ops::Range;

use crate::kv::layout::BlockId;
use crate::tokenizer::TokenId;

/// What the engine and the benches need to know of a backend.
#[derive(Clone, Debug)]
pub struct Info {
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
    /// Tokens of the sequence that are cached already; the row's first token has this position.
    pub cached_tokens: usize,
    /// Pages of the sequence, with room for the row's tokens.
    pub pages: Vec<BlockId>,
}

pub trait Backend: Send {
    fn info(&self) -> &Info;

    /// Makes room for blocks 0..n_blocks. Called once, before the first batch.
    fn reserve(&mut self, n_blocks: usize) -> anyhow::Result<()>;

    /// Computes a batch, leaving K and V of its tokens in their pages: logits (n_wanted, vocab) f32.
    fn forward(&mut self, batch: &Batch) -> anyhow::Result<&[f32]>;

    /// Gives back the memory of blocks that nobody owns.
    fn release_blocks(&mut self, blocks: &[BlockId]);
}
