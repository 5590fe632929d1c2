//! The only index arithmetic of the KV cache.

/// Tokens per block.
pub const BLOCK_TOKENS: usize = 16;

/// How one head row of K or V is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KvType {
    F32,
    F16,
}
