//! The activations of a pass, allocated once for the largest one (n: tokens of the batch).

use anyhow::Result;

use super::driver::{Buffer, Device};
use super::params::{Best, Ptr, Rows, XGroup};
use super::step::{SPAN_TOKENS, Staging, bucket};
use crate::backend::cpu::Widths;
use crate::model::Linear;
use crate::quant::GROUP;

/// Room for the partial results of attention, in spans, however short the context: eight sequences of 2,048 tokens decode
/// together.
const LEAST_SPANS: usize = 64;

/// For what buffers are made.
#[derive(Clone, Copy, Debug)]
pub struct Sizes {
    pub widths: Widths,
    pub batch_tokens: usize,
    pub batch_logits: usize,
    pub has_head: bool,
    /// Whether a matrix of floats reads rows.
    pub reads_floats: bool,
    /// Whether queries are int8, as K is.
    pub int8_queries: bool,
}

pub struct Buffers {
    /// (n, dim): what a block adds to the residual stream
    pub y: Buffer<f32>,
    /// (n, dim or q_dim): what the matrices of a layer read
    pub input: RowsBuffer,
    /// (n, hidden_dim): what ffn_down reads
    pub hidden: RowsBuffer,
    /// (n, q_dim + 2 * kv_dim)
    pub qkv: Buffer<f32>,
    /// (n, q_dim), one of the two
    pub q: Buffer<f32>,
    pub q8: Buffer<i8>,
    /// (n, n_heads)
    pub q8_scale: Buffer<f32>,
    /// (n, 2 * hidden_dim), prefill only
    pub gate_up: Buffer<f32>,
    /// (n_logits, vocab)
    pub logits: Buffer<f32>,
    /// (n_logits)
    pub best: Buffer<Best>,
}

/// Rows of activations in both of their forms.
pub struct RowsBuffer {
    q: Buffer<i8>,
    groups: Buffer<XGroup>,
    x: Buffer<f32>,
}

/// Elements of each buffer, in the order of their fields; rows of `input` and `hidden` as columns a token.
struct Elements {
    y: usize,
    input: usize,
    hidden: usize,
    qkv: usize,
    q: usize,
    q8: usize,
    q8_scale: usize,
    gate_up: usize,
    logits: usize,
    best: usize,
}

impl Sizes {
    fn elements(&self) -> Elements {
        let (w, n) = (&self.widths, self.batch_tokens);
        let (q_dim, kv_dim) = (w.n_heads * w.head_dim, w.n_kv_heads * w.head_dim);
        let n_logits = if self.has_head { self.batch_logits } else { 0 };
        Elements {
            y: n * w.dim,
            input: n * w.dim.max(q_dim),
            hidden: n * w.hidden_dim,
            qkv: n * (q_dim + 2 * kv_dim),
            q: if self.int8_queries { 0 } else { n * q_dim },
            q8: if self.int8_queries { n * q_dim } else { 0 },
            q8_scale: if self.int8_queries { n * w.n_heads } else { 0 },
            gate_up: n * 2 * w.hidden_dim,
            logits: n_logits * w.vocab,
            best: n_logits,
        }
    }

    /// Bytes that `Buffers::new` allocates on the device.
    pub fn bytes(&self) -> u64 {
        let e = self.elements();
        let floats = e.y + e.qkv + e.q + e.q8_scale + e.gate_up + e.logits;
        let rows = RowsBuffer::bytes(e.input, self.reads_floats) + RowsBuffer::bytes(e.hidden, self.reads_floats);
        (4 * floats + e.q8 + size_of::<Best>() * e.best) as u64 + rows
    }

    /// Bytes for the staging of passes and the partial results of attention, when sequences may hold so many tokens.
    pub fn context_bytes(&self, context_tokens: usize) -> u64 {
        let w = &self.widths;
        let words = Staging::words(w.dim, w.head_dim, self.batch_tokens, context_tokens);
        4 * (words + self.partial_elements(context_tokens)) as u64
    }

    fn partial_elements(&self, context_tokens: usize) -> usize {
        most_spans(context_tokens) * self.widths.n_heads * (self.widths.head_dim + 2)
    }

    /// (spans, n_heads, head_dim + 2) f32 of attention's partial results.
    pub fn partial(&self, device: &Device, context_tokens: usize) -> Result<Buffer<f32>> {
        device.alloc(self.partial_elements(context_tokens))
    }
}

/// Spans of all sequences of a decode pass for which there is room.
pub fn most_spans(context_tokens: usize) -> usize {
    let most = bucket(context_tokens).max(LEAST_SPANS);
    debug_assert!(most * SPAN_TOKENS >= context_tokens);
    most
}

impl Buffers {
    pub fn new(device: &Device, sizes: &Sizes) -> Result<Buffers> {
        let e = sizes.elements();
        Ok(Buffers {
            y: device.alloc(e.y)?,
            input: RowsBuffer::new(device, e.input, sizes.reads_floats)?,
            hidden: RowsBuffer::new(device, e.hidden, sizes.reads_floats)?,
            qkv: device.alloc(e.qkv)?,
            q: device.alloc(e.q)?,
            q8: device.alloc(e.q8)?,
            q8_scale: device.alloc(e.q8_scale)?,
            gate_up: device.alloc(e.gate_up)?,
            logits: device.alloc(e.logits)?,
            best: device.alloc(e.best)?,
        })
    }
}

impl RowsBuffer {
    fn new(device: &Device, elements: usize, reads_floats: bool) -> Result<RowsBuffer> {
        Ok(RowsBuffer {
            q: device.alloc(elements)?,
            groups: device.alloc(elements.div_ceil(GROUP))?,
            x: device.alloc(if reads_floats { elements } else { 0 })?,
        })
    }

    fn bytes(elements: usize, reads_floats: bool) -> u64 {
        let floats = if reads_floats { 4 * elements } else { 0 };
        (elements + size_of::<XGroup>() * elements.div_ceil(GROUP) + floats) as u64
    }

    /// `n` rows of `cols` in the forms that the readers want.
    pub fn rows(&self, n: usize, cols: usize, readers: Readers) -> Rows {
        let (q, groups) = match readers.quantized {
            true => (self.q.at(0, n * cols), self.groups.at(0, n * cols / GROUP)),
            false => (Ptr::NULL, Ptr::NULL),
        };
        let x = if readers.floats { self.x.at(0, n * cols) } else { Ptr::NULL };
        Rows { q, groups, x, cols: cols as i32, unused: 0 }
    }

    /// What taps look at: levels (n, cols) and their groups, or floats.
    pub fn parts(&self) -> (&Buffer<i8>, &Buffer<XGroup>, &Buffer<f32>) {
        (&self.q, &self.groups, &self.x)
    }
}

/// Which forms of their input some matrices read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Readers {
    pub quantized: bool,
    pub floats: bool,
}

impl Readers {
    pub fn of(linears: &[&Linear]) -> Readers {
        let quantized = |linear: &&&Linear| linear.weight.dtype.is_quantized();
        let n = linears.iter().filter(quantized).count();
        Readers { quantized: n > 0, floats: n < linears.len() }
    }
}
