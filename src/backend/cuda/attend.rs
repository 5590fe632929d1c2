//! The kernels beside the products: norms, RoPE and the cache, attention, the likeliest token. One function a launch; shapes
//! and costs stand above the kernels in kernels/{norm,rope,attention,attention_prefill,best}.cu.

use anyhow::Result;

use super::driver::{Device, Kernel, blocks};
use super::params::{Best, Heads, KvLayer, Ptr, Rows, Step, Tile};

/// Query heads that blocks of `attention_spans` can share K and V among.
const SHARED_HEADS: [usize; 3] = [1, 4, 8];
/// Longest heads that variants of `attention_prefill` are made for.
const HEAD_DIMS: [usize; 3] = [64, 128, 256];
const WARP: u32 = 32;

pub struct Attend {
    add_norm: Kernel,
    rope_store: Kernel,
    spans: [Kernel; SHARED_HEADS.len()],
    merge: Kernel,
    prefill: [Kernel; HEAD_DIMS.len()],
    best: Kernel,
}

/// Where the queries of a pass lie: as f32, or as int8 with a scale a head when K is INT8.
#[derive(Clone, Copy)]
pub struct Queries {
    /// (n, n_heads * head_dim)
    pub q: Ptr<f32>,
    pub q8: Ptr<i8>,
    /// (n, n_heads)
    pub q8_scale: Ptr<f32>,
}

impl Attend {
    pub fn new(device: &Device) -> Result<Attend> {
        Ok(Attend {
            add_norm: device.kernel("add_norm")?,
            rope_store: device.kernel("rope_store")?,
            spans: [
                device.kernel("attention_spans_1")?,
                device.kernel("attention_spans_4")?,
                device.kernel("attention_spans_8")?,
            ],
            merge: device.kernel("attention_merge")?,
            prefill: [
                device.kernel("attention_prefill_64")?,
                device.kernel("attention_prefill_128")?,
                device.kernel("attention_prefill_256")?,
            ],
            best: device.kernel("best")?,
        })
    }

    /// x += y (unless that is null); out = norm(x), for `n` tokens or those that are wanted.
    #[expect(clippy::too_many_arguments, reason = "those of the kernel")]
    pub fn add_norm(
        &self,
        device: &Device,
        (x, y): (Ptr<f32>, Ptr<f32>),
        (weight, eps): (Ptr<f32>, f32),
        dim: usize,
        wanted: Ptr<i32>,
        out: &Rows,
        n: usize,
    ) -> Result<()> {
        let threads = (dim as u32 / 4).next_multiple_of(WARP).clamp(WARP, 1024);
        let args = (x, y, weight, eps, dim as i32, wanted, *out);
        // SAFETY: the arguments of `add_norm`; x, y and out have the rows that are worked on, weight `dim` elements.
        unsafe { device.launch(&self.add_norm, blocks((n as u32, 1, 1), threads, 0), &args) }
    }

    /// qkv (n, ...) -> queries, and K and V in their pages.
    pub fn rope_store(
        &self,
        device: &Device,
        qkv: Ptr<f32>,
        (step, heads, kv): (&Step, &Heads, &KvLayer),
        queries: &Queries,
        n: usize,
    ) -> Result<()> {
        let grid = ((heads.n_heads + 2 * heads.n_kv_heads) as u32, n as u32, 1);
        let args = (qkv, *step, *heads, *kv, queries.q, queries.q8, queries.q8_scale);
        // SAFETY: the arguments of `rope_store`; every token's slot has a page in the step's table, inside the pool.
        unsafe { device.launch(&self.rope_store, blocks(grid, heads.head_dim as u32, 0), &args) }
    }

    /// Each span of each token's attention by itself: partial (n, n_heads, spans, head_dim + 2).
    pub fn spans(
        &self,
        device: &Device,
        (step, heads, kv): (&Step, &Heads, &KvLayer),
        queries: &Queries,
        (partial, spans): (Ptr<f32>, usize),
        n: usize,
    ) -> Result<()> {
        let group = (heads.n_heads / heads.n_kv_heads) as usize;
        let choice = SHARED_HEADS.iter().position(|&shared| shared >= group).unwrap_or(SHARED_HEADS.len() - 1);
        let parts = group.div_ceil(SHARED_HEADS[choice]);
        let grid = ((heads.n_kv_heads as usize * parts) as u32, spans as u32, n as u32);
        let args = (*step, *heads, *kv, queries.q, queries.q8, queries.q8_scale, partial, spans as i32);
        // SAFETY: the arguments of `attention_spans`; pages up to every token's slot are in the step's table.
        unsafe { device.launch(&self.spans[choice], blocks(grid, 256, 0), &args) }
    }

    /// The spans of each token put together: out (n, n_heads * head_dim).
    pub fn merge(
        &self,
        device: &Device,
        (step, heads, kv): (&Step, &Heads, &KvLayer),
        (partial, spans): (Ptr<f32>, usize),
        out: &Rows,
        n: usize,
    ) -> Result<()> {
        let grid = (heads.n_heads as u32, n as u32, 1);
        let args = (*step, *heads, *kv, partial, spans as i32, *out);
        // SAFETY: the arguments of `attention_merge`; `partial` holds what `spans` has left there.
        unsafe { device.launch(&self.merge, blocks(grid, heads.head_dim as u32, 0), &args) }
    }

    /// Attention of tiles of tokens: out (n, n_heads * head_dim).
    pub fn prefill(
        &self,
        device: &Device,
        (step, heads, kv): (&Step, &Heads, &KvLayer),
        queries: &Queries,
        (tiles, n_tiles): (Ptr<Tile>, usize),
        out: &Rows,
    ) -> Result<()> {
        let head_dim = heads.head_dim as usize;
        let choice = HEAD_DIMS.iter().position(|&most| most >= head_dim).expect("longer heads are refused before");
        let grid = (heads.n_kv_heads as u32, n_tiles as u32, 1);
        let args = (*step, *heads, *kv, queries.q, queries.q8, queries.q8_scale, tiles, *out);
        // SAFETY: the arguments of `attention_prefill`; the tiles part the tokens of the step by sequence.
        unsafe { device.launch(&self.prefill[choice], blocks(grid, 256, 0), &args) }
    }

    /// The likeliest token of each row of logits (n, vocab).
    pub fn best(&self, device: &Device, logits: Ptr<f32>, vocab: usize, out: Ptr<Best>, n: usize) -> Result<()> {
        let threads = (vocab as u32).next_multiple_of(WARP).min(1024);
        let args = (logits, vocab as i32, out);
        // SAFETY: the arguments of `best`; n rows in, n out.
        unsafe { device.launch(&self.best, blocks((n as u32, 1, 1), threads, 0), &args) }
    }
}
