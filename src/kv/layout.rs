//! The only index arithmetic of the KV cache: (block, layer, K or V, head, token) -> byte offset, for every row type.
//!
//! A block is one contiguous piece over all layers: `[layer][K|V][kv_head][token][head_dim]`, so that copying, saving and
//! giving back are one operation each, and the rows of 16 tokens of one head follow each other.

/// Tokens per block.
pub const BLOCK_TOKENS: usize = 16;

/// Bytes to which the stride of a block in the host pool is rounded: whole pages can be given back to the system.
pub const STRIDE_ALIGN: usize = 4096;

/// Physical block of the pool.
pub type BlockId = u32;

/// How one head row of K or V is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KvType {
    F32,
    F16,
}

impl KvType {
    pub const fn name(self) -> &'static str {
        match self {
            KvType::F32 => "f32",
            KvType::F16 => "f16",
        }
    }

    /// Bytes of one head row.
    pub const fn row_bytes(self, head_dim: usize) -> usize {
        match self {
            KvType::F32 => 4 * head_dim,
            KvType::F16 => 2 * head_dim,
        }
    }
}

/// Which half of the cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Half {
    K,
    V,
}

/// Offsets inside a block, and of blocks in the pool.
#[derive(Clone, Debug)]
pub struct Layout {
    head_dim: usize,
    k_type: KvType,
    v_type: KvType,
    /// Start of each layer's K rows in a block; one more entry for the end.
    layer_offsets: Vec<usize>,
    kv_heads: Vec<usize>,
}

impl Layout {
    /// `kv_heads`: KV heads of each layer that the backend holds.
    pub fn new(kv_heads: &[usize], head_dim: usize, k_type: KvType, v_type: KvType) -> Layout {
        let mut layer_offsets = vec![0];
        for heads in kv_heads {
            let end = layer_offsets[layer_offsets.len() - 1];
            layer_offsets.push(end + heads * BLOCK_TOKENS * (k_type.row_bytes(head_dim) + v_type.row_bytes(head_dim)));
        }
        Layout { head_dim, k_type, v_type, layer_offsets, kv_heads: kv_heads.to_vec() }
    }

    pub fn head_dim(&self) -> usize {
        self.head_dim
    }

    pub fn row_type(&self, half: Half) -> KvType {
        match half {
            Half::K => self.k_type,
            Half::V => self.v_type,
        }
    }

    pub fn row_bytes(&self, half: Half) -> usize {
        self.row_type(half).row_bytes(self.head_dim)
    }

    /// Payload of a block over all layers.
    pub fn block_bytes(&self) -> usize {
        self.layer_offsets[self.layer_offsets.len() - 1]
    }

    /// Distance between blocks in the host pool.
    pub fn block_stride(&self) -> usize {
        self.block_bytes().next_multiple_of(STRIDE_ALIGN)
    }

    /// Offset in a block of the row of `token` (0..BLOCK_TOKENS) of one head.
    pub fn row_offset(&self, layer: usize, half: Half, kv_head: usize, token: usize) -> usize {
        assert!(kv_head < self.kv_heads[layer] && token < BLOCK_TOKENS, "head {kv_head} token {token}");
        let k_rows = self.kv_heads[layer] * BLOCK_TOKENS * self.row_bytes(Half::K);
        let half_start = match half {
            Half::K => 0,
            Half::V => k_rows,
        };
        self.layer_offsets[layer] + half_start + (kv_head * BLOCK_TOKENS + token) * self.row_bytes(half)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_has_its_own_place_and_the_payload_is_exact() {
        let heads = [2, 3, 1];
        let layout = Layout::new(&heads, 8, KvType::F16, KvType::F32);
        let mut taken = vec![false; layout.block_bytes()];
        for (layer, &n) in heads.iter().enumerate() {
            for half in [Half::K, Half::V] {
                for head in 0..n {
                    for token in 0..BLOCK_TOKENS {
                        let start = layout.row_offset(layer, half, head, token);
                        for cell in &mut taken[start..start + layout.row_bytes(half)] {
                            assert!(!std::mem::replace(cell, true), "rows overlap");
                        }
                    }
                }
            }
        }
        assert!(taken.iter().all(|&cell| cell), "bytes without a row");
        assert_eq!(layout.block_bytes(), 6 * 16 * 8 * (2 + 4));
        assert_eq!(layout.block_stride() % STRIDE_ALIGN, 0);
    }

    #[test]
    fn published_models_take_the_published_bytes_per_token() {
        let per_token = |layers: usize, heads: usize, dim: usize| {
            Layout::new(&vec![heads; layers], dim, KvType::F16, KvType::F16).block_bytes() / BLOCK_TOKENS
        };
        assert_eq!(per_token(30, 3, 64), 23_040); // SmolLM2-135M
        assert_eq!(per_token(40, 40, 128), 819_200); // Llama-2-13B
        assert_eq!(per_token(32, 8, 128), 131_072); // Llama-3-8B
    }
}
