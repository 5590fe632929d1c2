//! The only index arithmetic of the KV cache: (block, layer, K or V, head, token) -> byte offset, for every row type.
//!
//! A block is one contiguous piece over all layers: `[layer][K|V][kv_head][token][head_dim]`, so that copying, saving and
//! giving back are one operation each, and the rows of 16 tokens of one head follow each other. INT8 adds the scales of
//! these rows, `[..][kv_head][token]` f16, right behind them.

use std::ops::Range;

/// Tokens per block.
pub const BLOCK_TOKENS: usize = 16;

/// Bytes to which the stride of a block in the host pool is rounded: whole pages can be given back to the system.
pub const STRIDE_ALIGN: usize = 4096;

/// The same for the pool of a GPU, which is one allocation: what keeps loads of 16 bytes aligned, and whole lines of its
/// caches together.
pub const DEVICE_STRIDE_ALIGN: usize = 256;

/// Physical block of the pool.
pub type BlockId = u32;

/// How one head row of K or V is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KvType {
    F32,
    F16,
    /// int8 with one f16 scale per token and head, after a rotation that spreads outliers over the head.
    Int8,
}

impl KvType {
    pub const fn name(self) -> &'static str {
        match self {
            KvType::F32 => "f32",
            KvType::F16 => "f16",
            KvType::Int8 => "int8",
        }
    }

    /// Bytes of the elements of one head row.
    pub const fn row_bytes(self, head_dim: usize) -> usize {
        match self {
            KvType::F32 => 4 * head_dim,
            KvType::F16 => 2 * head_dim,
            KvType::Int8 => head_dim,
        }
    }

    /// Bytes of the scale of one head row.
    pub const fn scale_bytes(self) -> usize {
        match self {
            KvType::F32 | KvType::F16 => 0,
            KvType::Int8 => 2,
        }
    }

    /// Whether rows are rotated before they are stored (and q with K): part of what the type is. V too, because it costs
    /// a few hundred additions a head and brings the product nearer to F16 (src/README.md has the numbers).
    pub const fn is_rotated(self) -> bool {
        matches!(self, KvType::Int8)
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
            let token_bytes = |kv_type: KvType| kv_type.row_bytes(head_dim) + kv_type.scale_bytes();
            layer_offsets.push(end + heads * BLOCK_TOKENS * (token_bytes(k_type) + token_bytes(v_type)));
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

    pub fn n_layers(&self) -> usize {
        self.kv_heads.len()
    }

    /// Payload of a block over all layers.
    pub fn block_bytes(&self) -> usize {
        self.layer_offsets[self.layer_offsets.len() - 1]
    }

    /// Distance between blocks in the host pool.
    pub fn block_stride(&self) -> usize {
        self.block_bytes().next_multiple_of(STRIDE_ALIGN)
    }

    /// Distance between blocks in the pool of a GPU.
    pub fn device_stride(&self) -> usize {
        self.block_bytes().next_multiple_of(DEVICE_STRIDE_ALIGN)
    }

    /// Bytes of the rows and scales of one head in a block.
    pub fn head_bytes(&self, half: Half) -> usize {
        BLOCK_TOKENS * (self.row_bytes(half) + self.row_type(half).scale_bytes())
    }

    /// Offset in a block of the rows of one head; its scales follow them.
    pub fn head_offset(&self, layer: usize, half: Half, kv_head: usize) -> usize {
        assert!(kv_head < self.kv_heads[layer], "head {kv_head} of {}", self.kv_heads[layer]);
        let half_start = match half {
            Half::K => 0,
            Half::V => self.kv_heads[layer] * self.head_bytes(Half::K),
        };
        self.layer_offsets[layer] + half_start + kv_head * self.head_bytes(half)
    }

    /// Ranges in a head's bytes of the row of `token` (0..BLOCK_TOKENS) and of its scale.
    pub fn token_ranges(&self, half: Half, token: usize) -> (Range<usize>, Range<usize>) {
        assert!(token < BLOCK_TOKENS, "token {token} of a block");
        let (row, scale) = (self.row_bytes(half), self.row_type(half).scale_bytes());
        let scales = BLOCK_TOKENS * row;
        (token * row..(token + 1) * row, scales + token * scale..scales + (token + 1) * scale)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_has_its_own_place_and_the_payload_is_exact() {
        let heads = [2, 3, 1];
        let layout = Layout::new(&heads, 8, KvType::Int8, KvType::F32);
        let mut taken = vec![false; layout.block_bytes()];
        for (layer, &n) in heads.iter().enumerate() {
            for half in [Half::K, Half::V] {
                for head in 0..n {
                    let start = layout.head_offset(layer, half, head);
                    for token in 0..BLOCK_TOKENS {
                        let (row, scale) = layout.token_ranges(half, token);
                        for cell in row.chain(scale) {
                            assert!(!std::mem::replace(&mut taken[start + cell], true), "rows overlap");
                        }
                    }
                }
            }
        }
        assert!(taken.iter().all(|&cell| cell), "bytes without a row");
        assert_eq!(layout.block_bytes(), 6 * 16 * (8 + 2 + 8 * 4));
        assert_eq!(layout.block_stride() % STRIDE_ALIGN, 0);
    }

    #[test]
    fn published_models_take_the_published_bytes_per_token() {
        let per_token = |layers: usize, heads: usize, dim: usize| {
            let bytes = |t| Layout::new(&vec![heads; layers], dim, t, t).block_bytes() / BLOCK_TOKENS;
            (bytes(KvType::F16), bytes(KvType::Int8))
        };
        assert_eq!(per_token(30, 3, 64), (23_040, 11_880)); // SmolLM2-135M
        assert_eq!(per_token(40, 40, 128), (819_200, 416_000)); // Llama-2-13B
        assert_eq!(per_token(32, 8, 128), (131_072, 66_560)); // Llama-3-8B
    }
}
