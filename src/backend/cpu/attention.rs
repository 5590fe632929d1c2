//! Attention over the pages of a sequence, span by span.
//!
//! A span is 256 consecutive entries of the page table. For one query and one span: all scores, their maximum m,
//! p = exp(score - m), l = sum of p, o = sum of p * v. Each span stands alone; (m, l, o) are merged in span order, so no
//! result depends on how spans are shared out. The G query heads of a KV head, and up to `TILE` tokens of a prompt, use
//! each page of K and V once it is turned into f32 (4 KB a page at head_dim 64: it stays in the L1 cache). INT8 pages are
//! never turned into anything: scores are integer dot products with an int8 query, values are widened in registers.
//!
//! Cost per query head and cached token: 2 * head_dim FMAs; memory per KV head, token and tile: one K and one V row.

use std::ops::Range;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::pages::Pages;
use super::simd::{Kernels, exp};
use super::threads::{Crew, PerWorker};
use crate::backend::BatchRow;
use crate::kv::layout::{BLOCK_TOKENS, Half, KvType};

/// Consecutive tokens of a sequence that are scored together: a part of the contract.
pub const SPAN_TOKENS: usize = 256;
/// Tokens of a prompt that share one pass over the pages.
const TILE: usize = 8;
/// Batches of at most this many tokens are split by spans as well, so that few heads still use all threads.
const SPLIT_TOKENS: usize = 4;

/// What attention needs to know of a layer.
#[derive(Clone, Copy)]
pub struct LayerShape {
    pub layer: usize,
    pub n_heads: usize,
    pub n_kv_heads: usize,
    pub head_dim: usize,
}

/// The work of one batch row at one layer.
pub struct Task<'a> {
    pub kernels: &'a Kernels,
    pub pages: &'a Pages,
    pub shape: LayerShape,
    pub row: &'a BatchRow,
    /// (tokens, q_len) f32, each row starting with the query heads of its token
    pub queries: &'a [f32],
    pub q_len: usize,
    /// (tokens), when K is int8
    pub int8: &'a [Int8Query],
}

/// The query heads of a token as int8, one scale a head.
#[derive(Clone, Debug)]
pub struct Int8Query {
    /// (n_heads * head_dim)
    pub q: Vec<i8>,
    /// (n_heads)
    pub scale: Vec<f32>,
}

impl Int8Query {
    /// Room for `n_heads` heads; for none, nothing.
    pub fn new(n_heads: usize, head_dim: usize) -> Int8Query {
        Int8Query { q: vec![0; n_heads * head_dim], scale: vec![0.0; n_heads] }
    }

    /// Bytes that `new` allocates, itself included.
    pub fn bytes(n_heads: usize, head_dim: usize) -> u64 {
        (size_of::<Int8Query>() + n_heads * (head_dim + 4)) as u64
    }

    pub fn quantize(&mut self, kernels: &Kernels, heads: &[f32], head_dim: usize) {
        let heads = heads.chunks_exact(head_dim).zip(self.q.chunks_exact_mut(head_dim));
        for ((head, q), scale) in heads.zip(&mut self.scale) {
            *scale = (kernels.quantize_head)(head, q);
        }
    }
}

/// Scratch of all workers and the partial results of split batches.
pub struct Attention {
    scratch: PerWorker<Scratch>,
    partials: Vec<f32>,
}

/// Buffers for `TILE` tokens times the heads of one KV head.
struct Scratch {
    /// (queries, SPAN_TOKENS)
    scores: Vec<f32>,
    /// (BLOCK_TOKENS, head_dim): one page of K or V
    page: Vec<f32>,
    /// (queries, head_dim) of one span, and merged over spans
    span_o: Vec<f32>,
    o: Vec<f32>,
    /// (queries): maximum and sum of one span, and merged
    span_ml: Vec<(f32, f32)>,
    ml: Vec<(f32, f32)>,
}

impl Attention {
    /// `max_group`: most query heads per KV head of any layer.
    pub fn new(threads: usize, max_group: usize, head_dim: usize) -> Attention {
        let queries = TILE * max_group;
        let scratch = || Scratch {
            scores: vec![0.0; queries * SPAN_TOKENS],
            page: vec![0.0; BLOCK_TOKENS * head_dim],
            span_o: vec![0.0; queries * head_dim],
            o: vec![0.0; queries * head_dim],
            span_ml: vec![(0.0, 0.0); queries],
            ml: vec![(0.0, 0.0); queries],
        };
        Attention { scratch: PerWorker::new(threads, scratch), partials: Vec::new() }
    }

    /// Bytes that `new` allocates.
    pub fn bytes(threads: usize, max_group: usize, head_dim: usize) -> u64 {
        let queries = TILE * max_group;
        let floats = queries * SPAN_TOKENS + BLOCK_TOKENS * head_dim + queries * (2 * head_dim + 4);
        (threads * (size_of::<Mutex<Scratch>>() + 4 * floats)) as u64
    }

    /// Bytes that the partial results of split batches take for each span of a context.
    pub fn bytes_per_span(n_heads: usize, head_dim: usize) -> u64 {
        (SPLIT_TOKENS * n_heads * (head_dim + 2) * 4) as u64
    }

    /// Attention of every token of a batch row to the tokens up to itself: `out` (tokens, n_heads * head_dim).
    pub fn run(&mut self, crew: &Crew, task: &Task, out: &mut [f32]) {
        if task.row.tokens.len() <= SPLIT_TOKENS {
            self.run_split(crew, task, out);
        } else {
            self.run_tiles(crew, task, out);
        }
    }

    /// One unit of work per tile of tokens and KV head; each goes through all its spans.
    fn run_tiles(&self, crew: &Crew, task: &Task, out: &mut [f32]) {
        let n_tokens = task.row.tokens.len();
        let (group, head_dim, kv_heads) = (task.group(), task.shape.head_dim, task.shape.n_kv_heads);
        let tiles = n_tokens.div_ceil(TILE);
        let out_len = task.shape.n_heads * head_dim;
        let tile_rows = out.chunks_mut(TILE * out_len).map(Mutex::new).collect::<Vec<_>>();
        let next = AtomicUsize::new(0);
        // later tiles see more tokens: handing them out one by one, longest first, keeps the workers level
        crew.each(|worker| {
            loop {
                let unit = next.fetch_add(1, Ordering::Relaxed);
                if unit >= tiles * kv_heads {
                    return;
                }
                let (tile, kv_head) = (tiles - 1 - unit / kv_heads, unit % kv_heads);
                let tokens = tile * TILE..n_tokens.min((tile + 1) * TILE);
                self.scratch.with(worker, |scratch| {
                    task.all_spans(scratch, tokens.clone(), kv_head);
                    let mut rows = tile_rows[tile].lock().expect("no worker panics while it copies");
                    for (i, row) in rows.chunks_mut(out_len).enumerate() {
                        let from = i * group * head_dim..(i + 1) * group * head_dim;
                        row[kv_head * group * head_dim..][..group * head_dim].copy_from_slice(&scratch.o[from]);
                    }
                });
            }
        });
    }

    /// One unit of work per token, KV head and span; the leader merges.
    fn run_split(&mut self, crew: &Crew, task: &Task, out: &mut [f32]) {
        let (group, head_dim, kv_heads) = (task.group(), task.shape.head_dim, task.shape.n_kv_heads);
        let n_tokens = task.row.tokens.len();
        let spans = (task.row.cached_tokens + n_tokens).div_ceil(SPAN_TOKENS);
        let unit_len = group * (head_dim + 2);
        let needed = n_tokens * kv_heads * spans * unit_len;
        if self.partials.len() < needed {
            self.partials.resize(needed, 0.0);
        }
        let scratch = &self.scratch;
        let partials = (&mut self.partials[..needed], unit_len);
        crew.split_rows(partials, (&mut vec![(); needed / unit_len], 1), |worker, units, partials, _| {
            for (unit, partial) in units.zip(partials.chunks_mut(unit_len)) {
                let (span, kv_head, token) = (unit % spans, unit / spans % kv_heads, unit / spans / kv_heads);
                scratch.with(worker, |scratch| {
                    task.span(scratch, token..token + 1, kv_head, span);
                    for (q, partial) in partial.chunks_mut(head_dim + 2).enumerate() {
                        (partial[0], partial[1]) = scratch.span_ml[q];
                        partial[2..].copy_from_slice(&scratch.span_o[q * head_dim..(q + 1) * head_dim]);
                    }
                });
            }
        });
        for (row, heads) in out.chunks_mut(head_dim).zip(0..) {
            let (token, head) = (heads / task.shape.n_heads, heads % task.shape.n_heads);
            let (kv_head, q) = (head / group, head % group);
            let mut ml = (0.0, 0.0);
            for span in 0..spans {
                let unit = (token * kv_heads + kv_head) * spans + span;
                let partial = &self.partials[unit * unit_len + q * (head_dim + 2)..][..head_dim + 2];
                if task.visible(token, span) > 0 {
                    merge(span == 0, &mut ml, row, (partial[0], partial[1]), &partial[2..]);
                }
            }
            finish(row, ml.1);
        }
    }
}

impl Task<'_> {
    /// Query heads per KV head.
    fn group(&self) -> usize {
        self.shape.n_heads / self.shape.n_kv_heads
    }

    /// Entries of a span that a token may see: those up to itself.
    fn visible(&self, token: usize, span: usize) -> usize {
        let seen = self.row.cached_tokens + token + 1;
        seen.saturating_sub(span * SPAN_TOKENS).min(SPAN_TOKENS)
    }

    /// Attention of a tile to all its spans, left in `scratch.o`.
    fn all_spans(&self, scratch: &mut Scratch, tokens: Range<usize>, kv_head: usize) {
        let (group, head_dim) = (self.group(), self.shape.head_dim);
        let spans = (self.row.cached_tokens + tokens.end).div_ceil(SPAN_TOKENS);
        for span in 0..spans {
            self.span(scratch, tokens.clone(), kv_head, span);
            for q in 0..tokens.len() * group {
                if self.visible(tokens.start + q / group, span) > 0 {
                    let part = q * head_dim..(q + 1) * head_dim;
                    let (o, span_o) = (&mut scratch.o[part.clone()], &scratch.span_o[part]);
                    merge(span == 0, &mut scratch.ml[q], o, scratch.span_ml[q], span_o);
                }
            }
        }
        for q in 0..tokens.len() * group {
            finish(&mut scratch.o[q * head_dim..(q + 1) * head_dim], scratch.ml[q].1);
        }
    }

    /// One span for the query heads of one KV head of some tokens: `scratch.span_ml` and `scratch.span_o`.
    fn span(&self, scratch: &mut Scratch, tokens: Range<usize>, kv_head: usize, span: usize) {
        let (group, head_dim) = (self.group(), self.shape.head_dim);
        let scale = 1.0 / (head_dim as f32).sqrt();
        let visible = |q: usize| self.visible(tokens.start + q / group, span);
        let n_queries = tokens.len() * group;
        let longest = visible(n_queries - 1);

        for at in (0..longest).step_by(BLOCK_TOKENS) {
            let page = self.page(&mut scratch.page, span, at, longest, Half::K, kv_head);
            for q in 0..n_queries {
                let n = visible(q).saturating_sub(at).min(BLOCK_TOKENS);
                let (token, head) = (tokens.start + q / group, kv_head * group + q % group);
                let scores = &mut scratch.scores[q * SPAN_TOKENS + at..][..n];
                match page {
                    Page::Floats(rows) => {
                        let query = &self.queries[token * self.q_len + head * head_dim..][..head_dim];
                        (self.kernels.scores)(query, &rows[..n * head_dim], scale, scores);
                    }
                    Page::Int8 { rows, scales } => {
                        let query = &self.int8[token];
                        let q = &query.q[head * head_dim..(head + 1) * head_dim];
                        (self.kernels.scores_int8)(q, query.scale[head] * scale, rows, scales, scores);
                    }
                }
            }
        }
        for q in 0..n_queries {
            let scores = &mut scratch.scores[q * SPAN_TOKENS..][..visible(q)];
            scratch.span_ml[q] = (self.kernels.softmax_span)(scores);
        }
        scratch.span_o[..n_queries * head_dim].fill(0.0);
        for at in (0..longest).step_by(BLOCK_TOKENS) {
            let page = self.page(&mut scratch.page, span, at, longest, Half::V, kv_head);
            for q in 0..n_queries {
                let n = visible(q).saturating_sub(at).min(BLOCK_TOKENS);
                let p = &scratch.scores[q * SPAN_TOKENS + at..][..n];
                let o = &mut scratch.span_o[q * head_dim..(q + 1) * head_dim];
                match page {
                    Page::Floats(rows) => (self.kernels.accumulate)(p, &rows[..n * head_dim], o),
                    Page::Int8 { rows, scales } => (self.kernels.accumulate_int8)(p, rows, scales, o),
                }
            }
        }
    }

    /// The page that holds entry `at` of a span; of a float type turned into f32 up to entry `end`, of int8 as it lies.
    fn page<'p>(
        &'p self,
        buffer: &'p mut [f32],
        span: usize,
        at: usize,
        end: usize,
        half: Half,
        kv_head: usize,
    ) -> Page<'p> {
        let block = self.row.pages[(span * SPAN_TOKENS + at) / BLOCK_TOKENS];
        let (rows, scales) = self.pages.head(block, self.shape.layer, half, kv_head);
        let kv_type = self.pages.layout().row_type(half);
        if kv_type == KvType::Int8 {
            return Page::Int8 { rows, scales };
        }
        let n = (end - at).min(BLOCK_TOKENS);
        let values = &mut buffer[..n * self.shape.head_dim];
        (self.kernels.decode)(kv_type, &rows[..n * kv_type.row_bytes(self.shape.head_dim)], &[], values);
        Page::Floats(values)
    }
}

/// Rows of one head in one block.
#[derive(Clone, Copy)]
enum Page<'a> {
    Floats(&'a [f32]),
    Int8 { rows: &'a [u8], scales: &'a [u8] },
}

/// Adds the (m, l, o) of the next span to the running ones.
fn merge(first: bool, ml: &mut (f32, f32), o: &mut [f32], span_ml: (f32, f32), span_o: &[f32]) {
    if first {
        *ml = span_ml;
        o.copy_from_slice(span_o);
        return;
    }
    let max = if span_ml.0 > ml.0 { span_ml.0 } else { ml.0 };
    let (old, new) = (exp(ml.0 - max), exp(span_ml.0 - max));
    *ml = (max, ml.1 * old + span_ml.1 * new);
    for (o, span_o) in o.iter_mut().zip(span_o) {
        *o = *o * old + *span_o * new;
    }
}

fn finish(o: &mut [f32], l: f32) {
    o.iter_mut().for_each(|o| *o /= l);
}
