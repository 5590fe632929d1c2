//! What a model and its KV cache take, and what fits: arithmetic over sizes that others found out.
//!
//! On one device lie some of the layers: their weights, their part of every KV block, and scratch. All results saturate:
//! a file may claim any size.

use super::layout::{BLOCK_TOKENS, KvType, Layout};

/// A model as far as memory is concerned.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelSizes {
    /// Looked up row by row, so it stays with the host.
    pub embedding_bytes: u64,
    /// Output norm and head, without the embedding table where that is the head.
    pub head_bytes: u64,
    /// The same as it lies on a GPU, which needs its own copy of an embedding table that is the head.
    pub gpu_head_bytes: u64,
    pub layers: Vec<LayerSizes>,
    pub head_dim: usize,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LayerSizes {
    pub weights_bytes: u64,
    /// In the form in which a GPU keeps them.
    pub gpu_bytes: u64,
    pub n_kv_heads: usize,
}

/// What is to be held, beside weights.
#[derive(Clone, Copy, Debug)]
pub struct Demand {
    pub context_tokens: usize,
    /// That can be full at once.
    pub sequences: usize,
    /// Kept for reuse after their sequences are gone.
    pub cache_tokens: usize,
    pub kv_types: KvTypes,
    pub scratch_bytes: u64,
    /// Scratch that grows with the context.
    pub scratch_bytes_per_token: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvTypes {
    pub k: KvType,
    pub v: KvType,
}

/// Bytes that one token, and one block of tokens, adds to the KV cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvBytes {
    pub per_token: u64,
    pub per_block: u64,
    /// Distance between blocks in the pool: what a block really takes.
    pub stride: u64,
}

/// What one device holds of a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    pub weights_bytes: u64,
    /// Weights stay in the mapped file and may leave memory again: they are not counted as needed.
    pub is_mapped: bool,
    pub kv: KvBytes,
    /// Whether anything is computed here.
    pub computes: bool,
}

impl ModelSizes {
    /// Bytes of the file's tensors.
    pub fn weights_bytes(&self) -> u64 {
        let layers = self.layers.iter().fold(0u64, |sum, layer| sum.saturating_add(layer.weights_bytes));
        layers.saturating_add(self.embedding_bytes).saturating_add(self.head_bytes)
    }

    /// The layers and the head, which counts as one more.
    pub fn offloadable(&self) -> usize {
        self.layers.len() + 1
    }

    /// The last `n` of the layers and the head.
    pub fn on_gpu(&self, n: usize, types: KvTypes) -> Part {
        let layers = &self.layers[self.offloadable() - n.max(1)..];
        let head = if n > 0 { self.gpu_head_bytes } else { 0 };
        let weights_bytes = layers.iter().fold(head, |sum, layer| sum.saturating_add(layer.gpu_bytes));
        let kv = self.kv(layers, types, Layout::device_stride);
        Part { weights_bytes, is_mapped: false, kv, computes: n > 0 }
    }

    /// The rest when the GPU has the last `n`; everything for 0.
    pub fn on_host(&self, n: usize, types: KvTypes) -> Part {
        let layers = &self.layers[..self.offloadable() - n.max(1)];
        let head = if n == 0 { self.head_bytes } else { 0 };
        let other = head.saturating_add(self.embedding_bytes);
        let weights_bytes = layers.iter().fold(other, |sum, layer| sum.saturating_add(layer.weights_bytes));
        let kv = self.kv(layers, types, Layout::block_stride);
        Part { weights_bytes, is_mapped: true, kv, computes: n < self.offloadable() }
    }

    fn kv(&self, layers: &[LayerSizes], types: KvTypes, stride: fn(&Layout) -> usize) -> KvBytes {
        let heads: Vec<usize> = layers.iter().map(|layer| layer.n_kv_heads).collect();
        let layout = Layout::new(&heads, self.head_dim, types.k, types.v);
        KvBytes {
            per_token: (layout.block_bytes() / BLOCK_TOKENS) as u64,
            per_block: layout.block_bytes() as u64,
            stride: stride(&layout) as u64,
        }
    }

    /// How many of the layers and the head fit a GPU of `budget` bytes.
    pub fn most_on_gpu(&self, demand: &Demand, budget: u64) -> usize {
        let fits = |n: &usize| self.on_gpu(*n, demand.kv_types).needed(demand) <= budget;
        (1..=self.offloadable()).rev().find(fits).unwrap_or(0)
    }
}

/// Blocks that hold `tokens`.
pub fn blocks(tokens: usize) -> u64 {
    tokens.div_ceil(BLOCK_TOKENS) as u64
}

impl Demand {
    /// Blocks that full sequences take.
    pub fn sequence_blocks(&self) -> u64 {
        blocks(self.context_tokens).saturating_mul(self.sequences as u64)
    }
}

impl Part {
    /// K and V of full sequences, as they lie in the pool.
    pub fn kv_bytes(&self, demand: &Demand) -> u64 {
        demand.sequence_blocks().saturating_mul(self.kv.stride)
    }

    pub fn cache_bytes(&self, demand: &Demand) -> u64 {
        blocks(demand.cache_tokens).saturating_mul(self.kv.stride)
    }

    pub fn scratch_bytes(&self, demand: &Demand) -> u64 {
        let growing = demand.scratch_bytes_per_token.saturating_mul(demand.context_tokens as u64);
        let copies = self.copy_bytes().saturating_mul(demand.sequences as u64);
        if self.computes { demand.scratch_bytes.saturating_add(growing).saturating_add(copies) } else { 0 }
    }

    /// A full sequence that is cut back goes on in a copy of its last block: a pool that is allocated at once has one more
    /// for each.
    fn copy_bytes(&self) -> u64 {
        if self.is_mapped { 0 } else { self.kv.stride }
    }

    /// Everything that must have its place in memory.
    pub fn needed(&self, demand: &Demand) -> u64 {
        let weights = if self.is_mapped { 0 } else { self.weights_bytes };
        let kv = self.kv_bytes(demand).saturating_add(self.cache_bytes(demand));
        weights.saturating_add(kv).saturating_add(self.scratch_bytes(demand))
    }

    /// The longest context, in whole blocks, with which all else fits `budget`; 0 if there is none.
    pub fn most_context(&self, demand: &Demand, budget: u64) -> usize {
        let left = budget.checked_sub(self.needed(&Demand { context_tokens: 0, ..*demand }));
        let scratch = if self.computes { demand.scratch_bytes_per_token } else { 0 };
        let per_block = self.kv.stride.saturating_mul(demand.sequences as u64);
        let per_block = per_block.saturating_add(scratch.saturating_mul(BLOCK_TOKENS as u64));
        let blocks = left.unwrap_or(0).checked_div(per_block).unwrap_or(u64::MAX);
        usize::try_from(blocks.saturating_mul(BLOCK_TOKENS as u64)).unwrap_or(usize::MAX)
    }

    /// How many sequences of the context's length fit `budget`.
    pub fn most_sequences(&self, demand: &Demand, budget: u64) -> usize {
        let left = budget.saturating_sub(self.needed(&Demand { sequences: 0, ..*demand }));
        let each = blocks(demand.context_tokens).saturating_mul(self.kv.stride).saturating_add(self.copy_bytes());
        usize::try_from(left.checked_div(each).unwrap_or(u64::MAX)).unwrap_or(usize::MAX)
    }

    /// Tokens that can be kept for reuse in what `budget` leaves.
    pub fn most_cache(&self, demand: &Demand, budget: u64) -> usize {
        let left = budget.saturating_sub(self.needed(&Demand { cache_tokens: 0, ..*demand }));
        let blocks = left.checked_div(self.kv.stride).unwrap_or(u64::MAX);
        usize::try_from(blocks.saturating_mul(BLOCK_TOKENS as u64)).unwrap_or(usize::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const F16: KvTypes = KvTypes { k: KvType::F16, v: KvType::F16 };
    const INT8: KvTypes = KvTypes { k: KvType::Int8, v: KvType::Int8 };

    /// Four layers of 1000 bytes; a block of F16 takes 2 * 2 * 64 * 2 * 16 = 8192 bytes a layer.
    fn model() -> ModelSizes {
        let layers = vec![LayerSizes { weights_bytes: 1000, gpu_bytes: 1100, n_kv_heads: 2 }; 4];
        ModelSizes { embedding_bytes: 300, head_bytes: 50, gpu_head_bytes: 400, layers, head_dim: 64 }
    }

    fn demand(context_tokens: usize, sequences: usize) -> Demand {
        let kv_types = F16;
        Demand { context_tokens, sequences, cache_tokens: 0, kv_types, scratch_bytes: 500, scratch_bytes_per_token: 2 }
    }

    #[test]
    fn the_host_holds_everything_and_counts_no_mapped_weights() {
        let part = model().on_host(0, F16);
        assert_eq!((part.weights_bytes, part.kv.per_token, part.kv.stride), (4350, 2048, 32768));
        // 17 tokens are two blocks, in each of three sequences; 20 cached tokens two more
        let demand = Demand { cache_tokens: 20, ..demand(17, 3) };
        assert_eq!(part.needed(&demand), (6 + 2) * 32768 + 500 + 34);
    }

    #[test]
    fn strides_are_whole_pages_and_the_payload_exact() {
        let part = model().on_host(0, INT8);
        assert_eq!((part.kv.per_token, part.kv.per_block), (4 * 2 * 2 * 66, 16 * 1056));
        assert_eq!(part.kv.stride, 20480);
        assert_eq!(model().on_gpu(5, INT8).kv.stride, 16 * 1056, "which is 66 times 256 bytes");
    }

    #[test]
    fn a_gpu_takes_the_last_layers_and_the_head_first() {
        let sizes = model();
        let weights = |n| (sizes.on_gpu(n, F16).weights_bytes, sizes.on_host(n, F16).weights_bytes);
        assert_eq!([0, 1, 2, 5].map(weights), [(0, 4350), (400, 4300), (1500, 3300), (4800, 300)]);
        let of_kv = |n| (sizes.on_gpu(n, F16).kv.stride, sizes.on_host(n, F16).kv.stride);
        assert_eq!([0, 1, 2, 5].map(of_kv), [(0, 32768), (0, 32768), (8192, 24576), (32768, 0)]);
        assert!(!sizes.on_gpu(0, F16).computes && !sizes.on_host(5, F16).computes);
        assert_eq!(sizes.on_host(5, F16).needed(&demand(64, 9)), 0);
    }

    #[test]
    fn the_most_that_fits_fits_and_one_more_does_not() {
        let sizes = model();
        let wanted = demand(100, 2);
        for budget in (0..600_000).step_by(7919) {
            let n = sizes.most_on_gpu(&wanted, budget);
            assert!(n == 0 || sizes.on_gpu(n, F16).needed(&wanted) <= budget);
            assert!(n == 5 || sizes.on_gpu(n + 1, F16).needed(&wanted) > budget);
            let part = sizes.on_gpu(5, F16);
            let with = |context_tokens, sequences, cache_tokens| {
                part.needed(&Demand { context_tokens, sequences, cache_tokens, ..wanted }) <= budget
            };
            let context = part.most_context(&wanted, budget);
            assert!((context == 0 || with(context, 2, 0)) && !with(context + 16, 2, 0), "{budget}: {context}");
            let sequences = part.most_sequences(&wanted, budget);
            assert!((sequences == 0 || with(100, sequences, 0)) && !with(100, sequences + 1, 0));
            let cache = part.most_cache(&wanted, budget);
            assert!((cache == 0 || with(100, 2, cache)) && (!with(100, 2, cache + 16)));
        }
    }

    #[test]
    fn absurd_sizes_saturate() {
        let mut sizes = model();
        sizes.layers[0].gpu_bytes = u64::MAX;
        let part = sizes.on_gpu(5, F16);
        let wanted = Demand { cache_tokens: usize::MAX / 2, ..demand(usize::MAX / 2, usize::MAX) };
        assert_eq!(part.needed(&wanted), u64::MAX);
        assert_eq!((part.most_context(&wanted, 1 << 40), part.most_sequences(&wanted, 1 << 40)), (0, 0));
    }
}
