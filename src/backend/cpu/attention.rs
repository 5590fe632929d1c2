//! Attention over the pages of a sequence, span by span.
//!
//! A span is 256 consecutive entries of the page table. For one query and one span: all scores, their maximum m,
//! p = exp(score - m), l = sum of p, o = sum of p * v. Each span stands alone; (m, l, o) are merged in span order, so no
//! result depends on how spans are shared out. The G query heads of a KV head, and up to `TILE` tokens of a prompt, use
//! each page of K and V once it is turned into f32 (4 KB a page at head_dim 64: it stays in the L1 cache). INT8 scores are
//! integer dot products with an int8 query; the scales of INT8 values go into p, their integers are exact in f32.
//! While K of a page is scored its V is asked for, and the next span's K while V is added up.
//!
//! Cost per query head and cached token: 2 * head_dim FMAs; memory per KV head, token and tile: one K and one V row.

use std::ops::Range;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::pages::Pages;
use super::simd::{Kernels, Queries};
use super::threads::{Crew, PerWorker};
use crate::backend::BatchRow;
use crate::kv::layout::{BLOCK_TOKENS, Half, KvType};

pub use super::simd::SPAN_TOKENS;
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
    /// (tokens, n_heads * head_dim) and (tokens, n_heads), when K is int8
    pub int8: &'a [i8],
    pub int8_scales: &'a [f32],
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
    /// (queries): scales of int8 queries
    q_scales: Vec<f32>,
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
            q_scales: vec![0.0; queries],
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
        let floats = queries * (SPAN_TOKENS + 2 * head_dim + 5) + BLOCK_TOKENS * head_dim;
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
        crew.split_chunks(partials, |worker, units, partials| {
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
        let (n_heads, partials) = (task.shape.n_heads, &self.partials);
        crew.split_chunks((out, head_dim), |_, rows, out| {
            for (row, o) in rows.zip(out.chunks_mut(head_dim)) {
                let (token, head) = (row / n_heads, row % n_heads);
                let (kv_head, q) = (head / group, head % group);
                let mut ml = (0.0, 0.0);
                for span in (0..spans).take_while(|&span| task.visible(token, span) > 0) {
                    let unit = (token * kv_heads + kv_head) * spans + span;
                    let partial = &partials[unit * unit_len + q * (head_dim + 2)..][..head_dim + 2];
                    task.merge(span, &mut ml, o, (partial[0], partial[1]), &partial[2..]);
                }
                finish(o, ml.1);
            }
        });
    }
}

impl Task<'_> {
    /// Query heads per KV head.
    fn group(&self) -> usize {
        self.shape.n_heads / self.shape.n_kv_heads
    }

    /// Of every score.
    fn scale(&self) -> f32 {
        1.0 / (self.shape.head_dim as f32).sqrt()
    }

    /// The query heads of a KV head for some tokens, numbered as the scratch holds them: (query, its token).
    fn queries_of(&self, tokens: Range<usize>) -> impl Iterator<Item = (usize, usize)> + use<> {
        let group = self.group();
        tokens.flat_map(move |token| (0..group).map(move |_| token)).enumerate()
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
                    self.merge(span, &mut scratch.ml[q], o, scratch.span_ml[q], span_o);
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
        // of the last token, which sees most: what is scored for the others beyond their own is not used
        let longest = self.visible(tokens.end - 1, span);
        if self.pages.layout().row_type(Half::K) == KvType::Int8 {
            let scale = self.scale();
            for (q, token) in self.queries_of(tokens.clone()) {
                let head = kv_head * group + q % group;
                scratch.q_scales[q] = self.int8_scales[token * self.shape.n_heads + head] * scale;
            }
        }
        for at in (0..longest).step_by(BLOCK_TOKENS) {
            self.prefetch(span, at, Half::V, kv_head);
            self.score_page(scratch, tokens.clone(), kv_head, (span, at, longest));
        }
        for (q, token) in self.queries_of(tokens.clone()) {
            let scores = &mut scratch.scores[q * SPAN_TOKENS..][..self.visible(token, span)];
            scratch.span_ml[q] = (self.kernels.softmax_span)(scores);
        }
        scratch.span_o[..tokens.len() * group * head_dim].fill(0.0);
        for at in (0..longest).step_by(BLOCK_TOKENS) {
            self.prefetch(span + 1, at, Half::K, kv_head);
            self.add_page(scratch, tokens.clone(), kv_head, (span, at, longest));
        }
    }

    /// Scores of all queries of a tile with the page at entry `at` of a span of `longest` entries.
    fn score_page(
        &self,
        scratch: &mut Scratch,
        tokens: Range<usize>,
        kv_head: usize,
        (span, at, longest): (usize, usize, usize),
    ) {
        let (group, head_dim) = (self.group(), self.shape.head_dim);
        let n = (longest - at).min(BLOCK_TOKENS);
        let (rows, scales) = self.page(span, at, Half::K, kv_head);
        let scores = &mut scratch.scores[at..];
        let first = kv_head * group * head_dim;
        let kv_type = self.pages.layout().row_type(Half::K);
        if kv_type == KvType::Int8 {
            let stride = self.shape.n_heads * head_dim;
            let q = &self.int8[tokens.start * stride + first..];
            let queries = Queries { q, stride, tokens: tokens.len(), heads: group, head_dim };
            (self.kernels.scores_int8)(&queries, &scratch.q_scales, rows, scales, n, scores);
        } else {
            let (q, stride) = (&self.queries[tokens.start * self.q_len + first..], self.q_len);
            let queries = Queries { q, stride, tokens: tokens.len(), heads: group, head_dim };
            let stored = &rows[..n * kv_type.row_bytes(head_dim)];
            (self.kernels.widen)(kv_type, stored, &mut scratch.page[..n * head_dim]);
            (self.kernels.scores)(&queries, &scratch.page, n, self.scale(), scores);
        }
    }

    /// Adds p * v of the page at entry `at` to `span_o` of all queries of a tile.
    fn add_page(
        &self,
        scratch: &mut Scratch,
        tokens: Range<usize>,
        kv_head: usize,
        (span, at, longest): (usize, usize, usize),
    ) {
        let (group, head_dim) = (self.group(), self.shape.head_dim);
        let (rows, scales) = self.page(span, at, Half::V, kv_head);
        let kv_type = self.pages.layout().row_type(Half::V);
        let stored = (longest - at).min(BLOCK_TOKENS);
        let values = &mut scratch.page[..stored * head_dim];
        (self.kernels.widen)(kv_type, &rows[..stored * kv_type.row_bytes(head_dim)], values);
        let seen = |token: usize| self.visible(token, span).saturating_sub(at).min(BLOCK_TOKENS);
        if kv_type == KvType::Int8 {
            for (q, token) in self.queries_of(tokens.clone()) {
                let p = &mut scratch.scores[q * SPAN_TOKENS + at..][..seen(token)];
                (self.kernels.scale)(p, scales);
            }
        }
        // tokens that see as much of the page go together: all of them, except at the end of the tile's own pages
        let mut token = tokens.start;
        while token < tokens.end {
            let n = seen(token);
            let end = if n == BLOCK_TOKENS { tokens.end } else { token + 1 };
            let q = (token - tokens.start) * group;
            let o = &mut scratch.span_o[q * head_dim..(end - tokens.start) * group * head_dim];
            (self.kernels.accumulate)(&scratch.scores[q * SPAN_TOKENS + at..], values, n, head_dim, o);
            token = end;
        }
    }

    /// The rows of the page that holds entry `at` of a span, and their scales.
    fn page(&self, span: usize, at: usize, half: Half, kv_head: usize) -> (&[u8], &[u8]) {
        let block = self.row.pages[(span * SPAN_TOKENS + at) / BLOCK_TOKENS];
        self.pages.head(block, self.shape.layer, half, kv_head)
    }

    /// Asks for a page, if there is one.
    fn prefetch(&self, span: usize, at: usize, half: Half, kv_head: usize) {
        if let Some(&block) = self.row.pages.get((span * SPAN_TOKENS + at) / BLOCK_TOKENS) {
            (self.kernels.prefetch)(self.pages.head(block, self.shape.layer, half, kv_head).0);
        }
    }

    /// Adds a span's (m, l, o) to the running ones.
    fn merge(&self, span: usize, ml: &mut (f32, f32), o: &mut [f32], span_ml: (f32, f32), span_o: &[f32]) {
        if span == 0 {
            *ml = span_ml;
            o.copy_from_slice(span_o);
        } else {
            (self.kernels.merge)(ml, o, span_ml, span_o);
        }
    }
}

fn finish(o: &mut [f32], l: f32) {
    o.iter_mut().for_each(|o| *o /= l);
}
