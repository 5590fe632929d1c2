//! The launches of a forward pass, stage by stage, in the order and with the names of backend/cpu/decoder.rs. What each
//! kernel reads, writes and costs stands in kernels/README.md.

use anyhow::Result;

use super::attend::{Attend, Queries};
use super::buffers::Buffers;
use super::driver::{Buffer, Device};
use super::params::{Heads, KvLayer, Ptr, Rows};
use super::pool::Pool;
use super::products::Products;
use super::step::{Kind, Shape, StepData};
use super::watch::Watch;
use super::weights::{Head, Layer, Linears, Weights};
use crate::backend::{Stage, Want};
use crate::model::Config;

/// What stays the same through one forward pass. Nothing in it waits for the device, so that a pass can be captured.
pub struct Launches<'a> {
    pub device: &'a Device,
    pub products: &'a Products,
    pub attend: &'a Attend,
    pub config: &'a Config,
    pub weights: &'a Weights,
    pub pool: &'a Pool,
    pub buffers: &'a Buffers,
    /// (spans, n_heads, head_dim + 2): what spans give to be merged
    pub partial: &'a Buffer<f32>,
    pub shape: Shape,
    pub data: StepData,
}

impl Launches<'_> {
    /// Hidden rows in; hidden rows, logits or the likeliest tokens of the wanted ones out; K and V in the pages.
    pub fn run(&self, want: Want, watch: &mut Watch) -> Result<()> {
        // What the stage before has left to be added to the residual stream.
        let mut y = Ptr::NULL;
        for (n, layer) in self.weights.layers.iter().enumerate() {
            self.attention(n, layer, y, watch)?;
            self.feed_forward(n, layer, watch)?;
            y = self.buffers.y.ptr();
        }
        match (want, &self.weights.head) {
            (Want::Hidden, _) => self.add_last(y),
            (_, Some(head)) if self.shape.wanted > 0 => self.head(head, y, want, watch),
            (_, Some(_)) => Ok(()),
            (_, None) => panic!("this part of the model has no output head"),
        }
    }

    /// y = W_o attention(rope(W_q h), cached K, cached V) with h = norm(x), where x has got the last block's `y` first.
    fn attention(&self, n: usize, layer: &Layer, y: Ptr<f32>, watch: &mut Watch) -> Result<()> {
        let (b, tokens, dim) = (self.buffers, self.shape.tokens, self.config.dim);
        let heads = layer.heads(self.config.head_dim);
        let (q_dim, qkv_len) = (layer.q_dim(self.config.head_dim), layer.qkv.rows());

        watch.begin(Stage::Norm, n)?;
        let input = b.input.rows(tokens, dim, layer.qkv.readers());
        self.add_norm(&layer.attn_norm, y, &input)?;
        watch.rows(Stage::Norm, n, &b.input, (tokens, dim, layer.qkv.readers().quantized))?;
        watch.begin(Stage::Qkv, n)?;
        self.product(&layer.qkv, &input, &b.qkv)?;
        watch.floats(Stage::Qkv, n, &b.qkv, tokens * qkv_len)?;

        watch.begin(Stage::Rope, n)?;
        let kv = self.pool.layer(n);
        let queries = Queries { q: b.q.ptr(), q8: b.q8.ptr(), q8_scale: b.q8_scale.ptr() };
        self.attend.rope_store(self.device, b.qkv.ptr(), (&self.data.step, &heads, &kv), &queries, tokens)?;

        watch.begin(Stage::Attention, n)?;
        let readers = layer.attn_output.readers();
        let attended = b.input.rows(tokens, q_dim, readers);
        self.attend(&heads, &kv, &queries, &attended)?;
        watch.rows(Stage::Attention, n, &b.input, (tokens, q_dim, readers.quantized))?;

        watch.begin(Stage::AttnOutput, n)?;
        self.product(&layer.attn_output, &attended, &b.y)?;
        watch.floats(Stage::AttnOutput, n, &b.y, tokens * dim)
    }

    /// Softmax of the scores over the pages times their values: by spans for one token a sequence, by tiles of tokens else.
    fn attend(&self, heads: &Heads, kv: &KvLayer, queries: &Queries, out: &Rows) -> Result<()> {
        let of = (&self.data.step, heads, kv);
        match self.shape.kind {
            Kind::Decode => {
                let (n, spans) = (self.shape.tokens, self.shape.spans);
                let needed = n * spans * heads.n_heads as usize * (heads.head_dim as usize + 2);
                let partial = self.partial.at(0, needed);
                self.attend.spans(self.device, of, queries, (partial, spans), n)?;
                self.attend.merge(self.device, of, (partial, spans), out, n)
            }
            Kind::Prefill => {
                let tiles = (self.data.tiles, self.shape.tiles);
                self.attend.prefill(self.device, of, queries, tiles, out)
            }
        }
    }

    /// y = down(silu(gate(h)) * up(h)) with h = norm(x), where x has got the attention's y first.
    fn feed_forward(&self, n: usize, layer: &Layer, watch: &mut Watch) -> Result<()> {
        let (b, tokens, dim) = (self.buffers, self.shape.tokens, self.config.dim);
        let hidden_dim = layer.hidden_dim();
        watch.begin(Stage::Norm, n)?;
        let readers = layer.gate_up.readers();
        let input = b.input.rows(tokens, dim, readers);
        self.add_norm(&layer.ffn_norm, b.y.ptr(), &input)?;
        watch.rows(Stage::Norm, n, &b.input, (tokens, dim, readers.quantized))?;

        watch.begin(Stage::GateUp, n)?;
        let readers = layer.down.readers();
        let hidden = b.hidden.rows(tokens, hidden_dim, readers);
        match self.shape.kind {
            Kind::Decode => {
                self.products.gate_up(self.device, layer.gate_up.matrices(), &input, &hidden, tokens)?;
            }
            Kind::Prefill => {
                self.product(&layer.gate_up, &input, &b.gate_up)?;
                watch.begin(Stage::Silu, n)?;
                self.products.silu(self.device, b.gate_up.ptr(), hidden_dim, &hidden, tokens)?;
            }
        }
        watch.rows(Stage::Silu, n, &b.hidden, (tokens, hidden_dim, readers.quantized))?;

        watch.begin(Stage::Down, n)?;
        self.product(&layer.down, &hidden, &b.y)?;
        watch.floats(Stage::Down, n, &b.y, tokens * dim)
    }

    /// logits = W_out norm(x + y) for the wanted tokens only.
    fn head(&self, head: &Head, y: Ptr<f32>, want: Want, watch: &mut Watch) -> Result<()> {
        let (b, n, config) = (self.buffers, self.shape.wanted, self.config);
        watch.begin(Stage::Head, self.weights.layers.len())?;
        let input = b.input.rows(n, config.dim, head.output.readers());
        let (x, norm) = (self.data.x, head.norm.ptr());
        self.attend.add_norm(self.device, (x, y), (norm, config.norm_eps), config.dim, self.data.wanted, &input, n)?;
        self.product_of(&head.output, &input, &b.logits, n)?;
        if want == Want::Best {
            self.attend.best(self.device, b.logits.ptr(), config.vocab, b.best.ptr(), n)?;
        }
        Ok(())
    }

    /// x += y, for whoever takes the hidden rows from here.
    fn add_last(&self, y: Ptr<f32>) -> Result<()> {
        if y.is_null() {
            return Ok(());
        }
        let nobody = Rows { cols: self.config.dim as i32, ..Rows::NONE };
        let any = &self.weights.layers[0].attn_norm;
        self.add_norm(any, y, &nobody)
    }

    /// x += y; out = norm(x), for all tokens.
    fn add_norm(&self, weight: &Buffer<f32>, y: Ptr<f32>, out: &Rows) -> Result<()> {
        let (x, eps, dim) = (self.data.x, self.config.norm_eps, self.config.dim);
        self.attend.add_norm(self.device, (x, y), (weight.ptr(), eps), dim, Ptr::NULL, out, self.shape.tokens)
    }

    /// out (n, sum of rows) = the products of matrices that share an input, for all tokens.
    fn product(&self, weights: &Linears, input: &Rows, out: &Buffer<f32>) -> Result<()> {
        self.product_of(weights, input, out, self.shape.tokens)
    }

    fn product_of(&self, weights: &Linears, input: &Rows, out: &Buffer<f32>, n: usize) -> Result<()> {
        let stride = weights.rows();
        let start = out.at(0, n * stride);
        match self.shape.kind {
            Kind::Decode => self.products.matvec(self.device, weights.matrices(), input, (start, stride), n),
            Kind::Prefill => {
                let mut column = 0;
                for matrix in weights.each() {
                    let out = out.at(column, n * stride - column);
                    self.products.matmul(self.device, matrix, input, (out, stride), n)?;
                    column += matrix.rows as usize;
                }
                Ok(())
            }
        }
    }
}
