//! The decoder: read this to learn the model. One function a stage, in the order of the data.

use super::Options;
use super::attention::{Attention, LayerShape, Task};
use super::matmul::{Input, matmul};
use super::ops::{add, add_scaled, rms_norm, rope};
use super::pages::{NewRows, Pages, Slot, Slots};
use super::simd::{Kernels, exp};
use super::threads::Crew;
use std::sync::Mutex;

use crate::backend::{self, Batch, Part, Stage, Stopwatch, Tap, Tapped};
use crate::kv::layout::{BLOCK_TOKENS, Half, KvType};
use crate::kv::rows::rotate;
use crate::model::{Config, Expert, FeedForward, Layer, Linear, Model};

/// Least sum by which expert weights are divided: the smallest normal f16, as in llama.cpp.
const MIN_EXPERT_SUM: f32 = 6.103_515_6e-5;

/// All activations of a batch, allocated once for the largest one (n: tokens of the batch).
pub struct Buffers {
    /// (n, dim): the residual stream
    x: Vec<f32>,
    /// The normed or activated rows that matrices read, and their int8 form.
    input: Input,
    /// (n, q_dim + 2 * kv_dim)
    qkv: Vec<f32>,
    /// (n, q_dim) query heads as int8 when K is, and their scales (n, n_heads)
    int8: Vec<i8>,
    int8_scales: Vec<f32>,
    /// (n, head_dim / 2)
    cos: Vec<f32>,
    sin: Vec<f32>,
    /// (n, q_dim)
    attn: Vec<f32>,
    attention: Attention,
    /// (n, 2 * hidden_dim)
    gate_up: Vec<f32>,
    /// (n, dim): what a block adds to the residual stream
    y: Vec<f32>,
    experts: Option<ExpertBuffers>,
    /// (n_logits, vocab)
    logits: Vec<f32>,
}

struct ExpertBuffers {
    /// (n, n_experts)
    router: Vec<f32>,
    input: Input,
    /// (n, dim)
    y: Vec<f32>,
}

/// The widest sizes of any layer: what buffers are made for.
#[derive(Clone, Copy, Debug)]
pub struct Widths {
    pub dim: usize,
    pub head_dim: usize,
    pub hidden_dim: usize,
    pub vocab: usize,
    pub n_heads: usize,
    pub n_kv_heads: usize,
    /// Query heads per KV head.
    pub group: usize,
    /// 0 for models without.
    pub n_experts: usize,
}

impl Widths {
    pub fn of(config: &Config) -> Widths {
        let widest = |size: fn(&crate::model::LayerShape) -> usize| config.layers.iter().map(size).max().unwrap_or(0);
        Widths {
            dim: config.dim,
            head_dim: config.head_dim,
            hidden_dim: widest(|l| l.hidden_dim),
            vocab: config.vocab,
            n_heads: widest(|l| l.n_heads),
            n_kv_heads: widest(|l| l.n_kv_heads),
            group: widest(|l| l.n_heads / l.n_kv_heads),
            n_experts: config.experts.map_or(0, |experts| experts.count),
        }
    }

    fn q_dim(&self) -> usize {
        self.n_heads * self.head_dim
    }

    fn kv_dim(&self) -> usize {
        self.n_kv_heads * self.head_dim
    }

    /// Longest rows that a matrix reads, and those of an expert.
    fn input_dims(&self) -> (usize, usize) {
        (self.dim.max(self.q_dim()).max(self.hidden_dim), self.dim.max(self.hidden_dim))
    }
}

impl Buffers {
    /// `has_head`: logits will be wanted.
    pub fn new(widths: &Widths, options: &Options, has_head: bool) -> Buffers {
        let (w, n, activations) = (widths, options.batch_tokens, options.activations);
        let int8_heads = if options.kv_type_k == KvType::Int8 { w.n_heads } else { 0 };
        let (input_dim, expert_dim) = w.input_dims();
        let experts = (w.n_experts > 0).then(|| ExpertBuffers {
            router: vec![0.0; n * w.n_experts],
            input: Input::new(activations, n, expert_dim),
            y: vec![0.0; n * w.dim],
        });
        Buffers {
            x: vec![0.0; n * w.dim],
            input: Input::new(activations, n, input_dim),
            qkv: vec![0.0; n * (w.q_dim() + 2 * w.kv_dim())],
            int8: vec![0; n * int8_heads * w.head_dim],
            int8_scales: vec![0.0; n * int8_heads],
            cos: vec![0.0; n * w.head_dim / 2],
            sin: vec![0.0; n * w.head_dim / 2],
            attn: vec![0.0; n * w.q_dim()],
            attention: Attention::new(options.threads, w.group, w.head_dim),
            gate_up: vec![0.0; n * 2 * w.hidden_dim],
            y: vec![0.0; n * w.dim],
            experts,
            logits: vec![0.0; if has_head { options.batch_logits * w.vocab } else { 0 }],
        }
    }

    /// Bytes that `new` allocates, for plans; a test compares the two.
    pub fn bytes(widths: &Widths, options: &Options, has_head: bool) -> u64 {
        let (w, n) = (widths, options.batch_tokens as u64);
        let f32s = |elements: usize| 4 * elements as u64;
        let int8_heads = if options.kv_type_k == KvType::Int8 { w.n_heads } else { 0 };
        let (input_dim, expert_dim) = w.input_dims();
        let experts = match w.n_experts {
            0 => 0,
            count => n * f32s(count + w.dim) + Input::bytes(options.activations, options.batch_tokens, expert_dim),
        };
        let per_token = f32s(w.dim + w.q_dim() + 2 * w.kv_dim() + w.head_dim + w.q_dim() + 2 * w.hidden_dim + w.dim)
            + (int8_heads * (w.head_dim + 4)) as u64;
        n * per_token
            + Input::bytes(options.activations, options.batch_tokens, input_dim)
            + experts
            + Attention::bytes(options.threads, w.group, w.head_dim)
            + if has_head { f32s(options.batch_logits) * w.vocab as u64 } else { 0 }
    }

    /// (n_logits, vocab) of the last batch.
    pub fn logits(&self, len: usize) -> &[f32] {
        &self.logits[..len]
    }

    /// (n, dim) behind the last layer.
    pub fn hidden(&self, len: usize) -> &[f32] {
        &self.x[..len]
    }
}

/// What stays the same through one forward pass.
pub struct Pass<'a> {
    pub model: &'a Model,
    pub part: &'a Part,
    pub kernels: &'a Kernels,
    pub crew: &'a Crew<'a>,
    pub batch: &'a Batch,
    /// Times the stages, when somebody asks for it.
    pub watch: Option<&'a Stopwatch>,
    /// Looks at the stages, when a test asks for it.
    pub tap: Option<&'a Mutex<Tap>>,
}

impl Pass<'_> {
    /// Tokens or hidden rows in; hidden rows, or with the head logits of the wanted ones, out; K and V of all of them in
    /// the pages.
    pub fn run(&self, input: backend::Input, has_head: bool, pages: &mut Pages, b: &mut Buffers) {
        let slots = self.slots();
        self.begin(Stage::Embed);
        match input {
            backend::Input::Tokens => self.embed(b),
            backend::Input::Hidden(x) => b.x[..x.len()].copy_from_slice(x),
        }
        if !self.part.layers.is_empty() {
            self.angles(b);
        }
        let (layers, head) = (&self.model.layers[..self.part.layers.end], [&self.model.output]);
        for n in self.part.layers.clone() {
            let layer = &layers[n];
            let next_qkv = layers.get(n + 1).map(Layer::qkv);
            let after = next_qkv.as_ref().map_or(&head[..], |qkv| &qkv[..]);
            self.attention(n, layer, &slots, pages, b);
            match &layer.ffn {
                FeedForward::Dense(ffn) => self.dense(n, &layer.ffn_norm, ffn, after, b),
                FeedForward::Experts { router, experts, used } => {
                    self.experts(&layer.ffn_norm, router, experts, *used, b);
                }
            }
            self.add_to_residual(b);
        }
        if has_head {
            self.head(b);
        }
        self.end();
    }

    /// What follows is this stage's work.
    fn begin(&self, stage: Stage) {
        if let Some(watch) = self.watch {
            watch.begin(Some(stage));
        }
    }

    fn end(&self) {
        if let Some(watch) = self.watch {
            watch.begin(None);
        }
    }

    /// Shows a stage's result (n, cols), f32.
    fn tap(&self, stage: Stage, layer: usize, values: &[f32]) {
        if let Some(tap) = self.tap {
            let mut values = values.to_vec();
            let mut tap = tap.lock().expect("a tap that panics ends the pass");
            tap(stage, layer, Tapped::Floats(&mut values));
        }
    }

    /// Shows the rows that the next matrices read, int8 where they read that.
    fn tap_input(&self, stage: Stage, layer: usize, input: &Input, (n, cols): (usize, usize), reader: &Linear) {
        match self.tap {
            Some(tap) if input.is_quantized_for(&reader.weight) => {
                let (mut levels, mut scales) = input.levels(n, cols);
                let mut tap = tap.lock().expect("a tap that panics ends the pass");
                tap(stage, layer, Tapped::Levels(&mut levels, &mut scales));
            }
            _ => self.tap(stage, layer, &input.x[..n * cols]),
        }
    }

    fn n_tokens(&self) -> usize {
        self.batch.tokens.len()
    }

    /// Where each token of the batch is kept.
    fn slots(&self) -> Slots {
        let rows = self.batch.rows.iter();
        let slots = rows.flat_map(|row| {
            row.tokens.clone().zip(row.cached_tokens..).map(|(_, position)| Slot {
                block: row.pages[position / BLOCK_TOKENS],
                offset: position % BLOCK_TOKENS,
            })
        });
        Slots::new(slots.collect())
    }

    /// x = rows of the embedding table.
    fn embed(&self, b: &mut Buffers) {
        for (x, &token) in b.x.chunks_mut(self.model.config.dim).zip(&self.batch.tokens) {
            self.model.token_embd.dequantize_row(token as usize, x);
        }
    }

    /// Cosines and sines of every token's position.
    fn angles(&self, b: &mut Buffers) {
        let pairs = self.model.config.head_dim / 2;
        for row in &self.batch.rows {
            for (token, position) in row.tokens.clone().zip(row.first_position as u32..) {
                let at = token * pairs..(token + 1) * pairs;
                self.model.config.rope.angles(position, &mut b.cos[at.clone()], &mut b.sin[at]);
            }
        }
    }

    /// y = W_o attention(rope(W_q h), cached K, cached V) with h = norm(x); x += y.
    fn attention(&self, n: usize, layer: &Layer, slots: &Slots, pages: &mut Pages, b: &mut Buffers) {
        let (tokens, config) = (self.n_tokens(), &self.model.config);
        let shape = config.layers[n];
        let head_dim = config.head_dim;
        let (q_dim, kv_dim) = (shape.n_heads * head_dim, shape.n_kv_heads * head_dim);
        let qkv_len = q_dim + 2 * kv_dim;

        let qkv = layer.qkv();
        self.norm(&layer.attn_norm, &qkv, &b.x, &mut b.input);
        self.tap_input(Stage::Norm, n, &b.input, (tokens, config.dim), &layer.attn_q);
        self.begin(Stage::Qkv);
        matmul(self.crew, self.kernels, &qkv, &[&layer.attn_output], &b.input, tokens, &mut b.qkv);
        self.tap(Stage::Qkv, n, &b.qkv[..tokens * qkv_len]);

        self.begin(Stage::Rope);
        let (cos, sin, pairs) = (&b.cos, &b.sin, head_dim / 2);
        let [k_type, v_type] = [Half::K, Half::V].map(|half| pages.layout().row_type(half));
        let rows = (&mut b.qkv[..tokens * qkv_len], qkv_len);
        self.crew.split_chunks(rows, |_, range, rows| {
            for (token, row) in range.zip(rows.chunks_mut(qkv_len)) {
                let at = token * pairs..(token + 1) * pairs;
                let (qk, v) = row.split_at_mut(q_dim + kv_dim);
                rope(qk, &cos[at.clone()], &sin[at]);
                if k_type.is_rotated() {
                    qk.chunks_exact_mut(head_dim).for_each(rotate);
                }
                if v_type.is_rotated() {
                    v.chunks_exact_mut(head_dim).for_each(rotate);
                }
            }
        });
        if k_type == KvType::Int8 {
            self.quantize_queries(shape.n_heads, qkv_len, b);
        }
        self.begin(Stage::Store);
        let rows = &b.qkv[..tokens * qkv_len];
        let (kv_heads, k_at, v_at) = (shape.n_kv_heads, q_dim, q_dim + kv_dim);
        let held = n - self.part.layers.start;
        let new = NewRows { layer: held, kv_heads, rows, row_len: qkv_len, k_at, v_at };
        pages.store(self.crew, slots, &new, self.kernels.encode);

        self.begin(Stage::Attention);
        let shape = LayerShape { layer: held, n_heads: shape.n_heads, n_kv_heads: shape.n_kv_heads, head_dim };
        for row in &self.batch.rows {
            let first = row.tokens.start;
            let task = Task {
                kernels: self.kernels,
                pages,
                shape,
                row,
                queries: &b.qkv[first * qkv_len..],
                q_len: qkv_len,
                int8: b.int8.get(first * q_dim..).unwrap_or_default(),
                int8_scales: b.int8_scales.get(first * shape.n_heads..).unwrap_or_default(),
            };
            b.attention.run(self.crew, &task, &mut b.attn[row.tokens.start * q_dim..row.tokens.end * q_dim]);
        }
        self.begin(Stage::AttnOutput);
        let attn = &b.attn;
        b.input.prepare(self.crew, self.kernels, (tokens, q_dim), &[&layer.attn_output], |token, row| {
            row.copy_from_slice(&attn[token * q_dim..(token + 1) * q_dim]);
            if v_type.is_rotated() {
                row.chunks_exact_mut(head_dim).for_each(rotate);
            }
        });
        self.tap_input(Stage::Attention, n, &b.input, (tokens, q_dim), &layer.attn_output);
        matmul(self.crew, self.kernels, &[&layer.attn_output], &layer.ffn.first(), &b.input, tokens, &mut b.y);
        self.tap(Stage::AttnOutput, n, &b.y[..tokens * config.dim]);
        self.add_to_residual(b);
    }

    /// The query heads at the start of every row of qkv -> int8, one scale a head.
    fn quantize_queries(&self, n_heads: usize, qkv_len: usize, b: &mut Buffers) {
        let (n, head_dim) = (self.n_tokens(), self.model.config.head_dim);
        let (q_dim, qkv) = (n_heads * head_dim, &b.qkv);
        let (int8, scales) = (&mut b.int8[..n * q_dim], &mut b.int8_scales[..n * n_heads]);
        self.crew.split_rows((int8, q_dim), (scales, n_heads), |_, tokens, int8, scales| {
            for ((token, int8), scales) in tokens.zip(int8.chunks_mut(q_dim)).zip(scales.chunks_mut(n_heads)) {
                let heads = qkv[token * qkv_len..][..q_dim].chunks_exact(head_dim);
                for ((head, q), scale) in heads.zip(int8.chunks_exact_mut(head_dim)).zip(scales) {
                    *scale = (self.kernels.quantize_head)(head, q);
                }
            }
        });
    }

    /// y = down(silu(gate(h)) * up(h)) with h = norm(x).
    fn dense(&self, n: usize, norm: &[f32], ffn: &Expert, after: &[&Linear], b: &mut Buffers) {
        self.norm(norm, &[&ffn.gate, &ffn.up], &b.x, &mut b.input);
        let (tokens, dim) = (self.n_tokens(), self.model.config.dim);
        self.tap_input(Stage::Norm, n, &b.input, (tokens, dim), &ffn.gate);
        self.feed_forward((ffn, after), tokens, &mut b.input, &mut b.gate_up, &mut b.y);
        self.tap_input(Stage::Silu, n, &b.input, (tokens, ffn.gate.weight.rows), &ffn.down);
        self.tap(Stage::Down, n, &b.y[..tokens * dim]);
    }

    /// The three matrices of a feed-forward network on `n` prepared rows; leaves other rows in `input`. `after`: matrices
    /// that are read next.
    fn feed_forward(
        &self,
        (ffn, after): (&Expert, &[&Linear]),
        n: usize,
        input: &mut Input,
        gate_up: &mut [f32],
        y: &mut [f32],
    ) {
        let hidden = ffn.gate.weight.rows;
        self.begin(Stage::GateUp);
        matmul(self.crew, self.kernels, &[&ffn.gate, &ffn.up], &[&ffn.down], input, n, gate_up);
        self.begin(Stage::Silu);
        let gate_up = &*gate_up;
        input.prepare(self.crew, self.kernels, (n, hidden), &[&ffn.down], |token, row| {
            let (gate, up) = gate_up[token * 2 * hidden..(token + 1) * 2 * hidden].split_at(hidden);
            row.copy_from_slice(gate);
            (self.kernels.silu_mul)(row, up);
        });
        self.begin(Stage::Down);
        matmul(self.crew, self.kernels, &[&ffn.down], after, input, n, y);
    }

    /// y = sum over the chosen experts, in ascending id, of weight * expert(h).
    fn experts(&self, norm: &[f32], router: &Linear, experts: &[Expert], used: usize, b: &mut Buffers) {
        let (n, dim) = (self.n_tokens(), self.model.config.dim);
        let scratch = b.experts.as_mut().expect("allocated for models with experts");
        self.norm(norm, &[router], &b.x, &mut b.input);
        self.begin(Stage::Router);
        matmul(self.crew, self.kernels, &[router], &[], &b.input, n, &mut scratch.router);
        let choices: Vec<_> = scratch.router.chunks_mut(experts.len()).take(n).map(|row| choose(row, used)).collect();

        b.y[..n * dim].fill(0.0);
        for (e, expert) in experts.iter().enumerate() {
            let weight_of = |token: usize| choices[token].iter().find(|choice| choice.0 == e).map(|choice| choice.1);
            let tokens: Vec<(usize, f32)> = (0..n).filter_map(|token| Some((token, weight_of(token)?))).collect();
            if tokens.is_empty() {
                continue;
            }
            self.begin(Stage::Norm);
            let (h, readers) = (&b.input.x, [&expert.gate, &expert.up]);
            scratch.input.prepare(self.crew, self.kernels, (tokens.len(), dim), &readers, |i, row| {
                row.copy_from_slice(&h[tokens[i].0 * dim..(tokens[i].0 + 1) * dim]);
            });
            self.feed_forward((expert, &[]), tokens.len(), &mut scratch.input, &mut b.gate_up, &mut scratch.y);
            self.begin(Stage::Residual);
            for (&(token, weight), y) in tokens.iter().zip(scratch.y.chunks(dim)) {
                add_scaled(&mut b.y[token * dim..(token + 1) * dim], weight, y);
            }
        }
    }

    /// logits = W_out norm(x) for the wanted tokens only.
    fn head(&self, b: &mut Buffers) {
        let (wanted, config) = (&self.batch.wanted, &self.model.config);
        if wanted.is_empty() {
            return;
        }
        self.begin(Stage::Head);
        let (x, dim, output) = (&b.x, config.dim, &self.model.output);
        b.input.prepare(self.crew, self.kernels, (wanted.len(), dim), &[output], |i, row| {
            let x = &x[wanted[i] * dim..(wanted[i] + 1) * dim];
            rms_norm(self.kernels, x, &self.model.output_norm, config.norm_eps, row);
        });
        matmul(self.crew, self.kernels, &[output], &[], &b.input, wanted.len(), &mut b.logits);
    }

    /// input = norm(x), quantized for `readers`.
    fn norm(&self, weight: &[f32], readers: &[&Linear], x: &[f32], input: &mut Input) {
        self.begin(Stage::Norm);
        let (dim, eps) = (self.model.config.dim, self.model.config.norm_eps);
        input.prepare(self.crew, self.kernels, (self.n_tokens(), dim), readers, |token, row| {
            rms_norm(self.kernels, &x[token * dim..(token + 1) * dim], weight, eps, row);
        });
    }

    /// x += y
    fn add_to_residual(&self, b: &mut Buffers) {
        self.begin(Stage::Residual);
        let (len, dim) = (self.n_tokens() * self.model.config.dim, self.model.config.dim);
        self.crew.split_rows((&mut b.x[..len], dim), (&mut b.y[..len], dim), |_, _, x, y| add(x, y));
    }
}

/// Softmax over all experts, the `used` likeliest (lower ids win ties), their weights brought to a sum of 1.
/// (expert, weight) in ascending id.
fn choose(logits: &mut [f32], used: usize) -> Vec<(usize, f32)> {
    let max = logits.iter().fold(f32::NEG_INFINITY, |max, &l| if l > max { l } else { max });
    logits.iter_mut().for_each(|l| *l = exp(*l - max));
    let total: f32 = logits.iter().sum();
    let mut order: Vec<usize> = (0..logits.len()).collect();
    order.sort_by(|&a, &b| logits[b].total_cmp(&logits[a]));
    let mut chosen: Vec<(usize, f32)> = order[..used].iter().map(|&e| (e, logits[e] / total)).collect();
    chosen.sort_by_key(|choice| choice.0);
    let sum = chosen.iter().map(|choice| choice.1).sum::<f32>().max(MIN_EXPERT_SUM);
    chosen.iter_mut().for_each(|choice| choice.1 /= sum);
    chosen
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn experts_are_chosen_by_weight_and_listed_by_id() {
        let mut logits = [0.0, (3f32).ln(), 0.0, (6f32).ln()];
        let chosen = choose(&mut logits, 2);
        assert_eq!(chosen.iter().map(|c| c.0).collect::<Vec<_>>(), [1, 3]);
        assert!((chosen[0].1 - 1.0 / 3.0).abs() < 1e-6 && (chosen[1].1 - 2.0 / 3.0).abs() < 1e-6);
        assert_eq!(choose(&mut [1.0, 1.0, 1.0], 1)[0], (0, 1.0));
    }
}
