//! A `llama` model from a checked GGUF: hyper-parameters and weights, every shape proven once, here.

mod config;
mod fingerprint;
mod rope;

use std::collections::HashSet;
use std::ops::Range;

use anyhow::{Result, bail};

pub use config::{Config, ExpertShape, LayerShape};
pub use fingerprint::Fingerprint;
pub use rope::{Rope, RopeOverrides, RopeScaling};

use crate::gguf::{Bytes, Gguf, Tensor};
use crate::quant::{DType, dequantize_row};

const ROPE_FREQS: &str = "rope_freqs.weight";

/// A weight matrix in the mapped file: `rows` outputs, each row `cols` inputs long and contiguous.
#[derive(Clone, Debug)]
pub struct Matrix {
    pub dtype: DType,
    pub rows: usize,
    pub cols: usize,
    data: Bytes,
}

impl Matrix {
    /// Bytes of one row.
    pub fn row_bytes(&self) -> usize {
        self.data.len() / self.rows
    }

    /// Bytes of rows that follow each other.
    pub fn rows_data(&self, rows: Range<usize>) -> &[u8] {
        let n = self.row_bytes();
        &self.data[rows.start * n..rows.end * n]
    }

    /// One row as f32.
    pub fn dequantize_row(&self, row: usize, out: &mut [f32]) {
        dequantize_row(self.dtype, self.rows_data(row..row + 1), out);
    }

    /// Rows as a matrix of its own, still in the map.
    fn part(&self, rows: Range<usize>) -> Matrix {
        let n = self.row_bytes();
        Matrix {
            dtype: self.dtype,
            rows: rows.len(),
            cols: self.cols,
            data: self.data.slice(rows.start * n..rows.end * n),
        }
    }

    pub fn bytes(&self) -> u64 {
        self.data.len() as u64
    }

    /// A copy of `bytes`, for tests and benchmarks.
    pub fn in_memory(dtype: DType, rows: usize, cols: usize, bytes: &[u8]) -> Matrix {
        Matrix { dtype, rows, cols, data: Bytes::in_memory(bytes) }
    }
}

/// y = W x + b
pub struct Linear {
    pub weight: Matrix,
    /// (rows) f32
    pub bias: Option<Vec<f32>>,
}

pub struct Layer {
    /// (dim) f32
    pub attn_norm: Vec<f32>,
    /// (n_heads * head_dim, dim)
    pub attn_q: Linear,
    /// (n_kv_heads * head_dim, dim)
    pub attn_k: Linear,
    pub attn_v: Linear,
    /// (dim, n_heads * head_dim)
    pub attn_output: Linear,
    /// (dim) f32
    pub ffn_norm: Vec<f32>,
    pub ffn: FeedForward,
}

impl Layer {
    /// The matrices that read the normed input of attention.
    pub fn qkv(&self) -> [&Linear; 3] {
        [&self.attn_q, &self.attn_k, &self.attn_v]
    }

    /// All matrices but those of experts.
    pub fn matrices(&self) -> impl Iterator<Item = &Linear> {
        let attention = [&self.attn_q, &self.attn_k, &self.attn_v, &self.attn_output];
        let ffn = match &self.ffn {
            FeedForward::Dense(Expert { gate, up, down }) => Some([gate, up, down]),
            FeedForward::Experts { .. } => None,
        };
        attention.into_iter().chain(ffn.into_iter().flatten())
    }
}

pub enum FeedForward {
    Dense(Expert),
    Experts {
        /// (n_experts, dim)
        router: Linear,
        experts: Vec<Expert>,
        used: usize,
    },
}

impl FeedForward {
    /// The matrices that are read first: gate and up, or the router, which stands for both.
    pub fn first(&self) -> [&Linear; 2] {
        match self {
            FeedForward::Dense(Expert { gate, up, .. }) => [gate, up],
            FeedForward::Experts { router, .. } => [router, router],
        }
    }
}

/// down(silu(gate(x)) * up(x))
pub struct Expert {
    /// (hidden_dim, dim)
    pub gate: Linear,
    pub up: Linear,
    /// (dim, hidden_dim)
    pub down: Linear,
}

pub struct Model {
    pub config: Config,
    /// (vocab, dim)
    pub token_embd: Matrix,
    pub layers: Vec<Layer>,
    /// (dim) f32
    pub output_norm: Vec<f32>,
    /// (vocab, dim); the embedding itself when the file has no head of its own
    pub output: Linear,
    /// Names of tensors in the file that the model does not use.
    pub unused_tensors: Vec<String>,
}

impl Model {
    pub fn from_gguf(gguf: &Gguf, overrides: &RopeOverrides) -> Result<Model> {
        let config = Config::from_gguf(gguf, overrides)?;
        let mut loader = Loader { gguf, used: HashSet::from([ROPE_FREQS]) };
        let token_embd = loader.matrix("token_embd.weight", config.vocab, config.dim)?;
        let output_norm = loader.vector("output_norm.weight", config.dim)?;
        let output = match gguf.tensor("output.weight") {
            Some(_) => loader.linear("output", config.vocab, config.dim)?,
            None => Linear { weight: token_embd.clone(), bias: None },
        };
        let layers = (0..config.n_layers).map(|n| loader.layer(n, &config)).collect::<Result<Vec<_>>>()?;
        let unused_tensors = loader.unused();
        Ok(Model { config, token_embd, layers, output_norm, output, unused_tensors })
    }

    /// The matrices that decoding one token reads, in order: all but the embedding table (one row) and the experts that
    /// are not used.
    pub fn matrices_per_token(&self) -> Vec<&Matrix> {
        self.matrices_of(0..self.layers.len(), true)
    }

    /// Those of some layers, and of the head if `has_head`.
    fn matrices_of(&self, layers: Range<usize>, has_head: bool) -> Vec<&Matrix> {
        let mut matrices = Vec::new();
        for layer in &self.layers[layers] {
            let attention = [&layer.attn_q, &layer.attn_k, &layer.attn_v, &layer.attn_output];
            matrices.extend(attention.map(|linear| &linear.weight));
            let (experts, used) = match &layer.ffn {
                FeedForward::Dense(expert) => (std::slice::from_ref(expert), 1),
                FeedForward::Experts { router, experts, used } => {
                    matrices.push(&router.weight);
                    (&experts[..], *used)
                }
            };
            for Expert { gate, up, down } in experts.iter().take(used) {
                matrices.extend([gate, up, down].map(|linear| &linear.weight));
            }
        }
        if has_head {
            matrices.push(&self.output.weight);
        }
        matrices
    }

    /// Bytes of weights that decoding one token reads in some layers, and in the head if `has_head`.
    pub fn bytes_per_token_of(&self, layers: Range<usize>, has_head: bool) -> u64 {
        self.matrices_of(layers, has_head).into_iter().map(Matrix::bytes).sum()
    }
}

impl Model {
    /// Tells models apart, also in files and on other machines: hyper-parameters, RoPE settings, all norms and biases, the
    /// type of every matrix and samples of its bytes. (Reading all bytes of large models would delay each start.)
    pub fn identity(&self) -> u64 {
        let mut of = Fingerprint::default();
        of.add(format!("{:?}", self.config).as_bytes());
        add_matrix(&mut of, &self.token_embd);
        add_floats(&mut of, &self.output_norm);
        add_linear(&mut of, &self.output);
        for layer in &self.layers {
            add_floats(&mut of, &layer.attn_norm);
            add_floats(&mut of, &layer.ffn_norm);
            let attention = [&layer.attn_q, &layer.attn_k, &layer.attn_v, &layer.attn_output];
            attention.into_iter().for_each(|linear| add_linear(&mut of, linear));
            let experts = match &layer.ffn {
                FeedForward::Dense(expert) => std::slice::from_ref(expert),
                FeedForward::Experts { router, experts, .. } => {
                    add_linear(&mut of, router);
                    experts
                }
            };
            for Expert { gate, up, down } in experts {
                [gate, up, down].into_iter().for_each(|linear| add_linear(&mut of, linear));
            }
        }
        of.finish()
    }
}

fn add_linear(of: &mut Fingerprint, linear: &Linear) {
    add_matrix(of, &linear.weight);
    add_floats(of, linear.bias.as_deref().unwrap_or(&[]));
}

fn add_floats(of: &mut Fingerprint, floats: &[f32]) {
    of.add_number(floats.len() as u64);
    floats.iter().for_each(|x| of.add(&x.to_le_bytes()));
}

/// Four samples, the first and the last bytes among them.
fn add_matrix(of: &mut Fingerprint, matrix: &Matrix) {
    const SAMPLE_BYTES: usize = 1024;
    of.add(matrix.dtype.name().as_bytes());
    of.add_number(matrix.rows as u64);
    of.add_number(matrix.cols as u64);
    let data = &matrix.data[..];
    let sample = data.len().min(SAMPLE_BYTES);
    for n in 0..4 {
        of.add(&data[(data.len() - sample) * n / 3..][..sample]);
    }
}

/// Takes tensors out of the file by name, checks their shapes and remembers which were used.
struct Loader<'a> {
    gguf: &'a Gguf,
    used: HashSet<&'a str>,
}

impl<'a> Loader<'a> {
    fn find(&mut self, name: &str) -> Option<&'a Tensor> {
        let tensor = self.gguf.tensor(name)?;
        self.used.insert(&tensor.name);
        Some(tensor)
    }

    /// A tensor that must be there and have these dims (the row length first).
    fn tensor(&mut self, name: &str, dims: &[usize]) -> Result<&'a Tensor> {
        let Some(tensor) = self.find(name) else {
            let layers = self.gguf.uint("llama.block_count")?.unwrap_or(0);
            bail!("{}: the tensor `{name}` is missing (llama.block_count is {layers})", self.gguf.path().display());
        };
        if !tensor.dims.iter().copied().eq(dims.iter().map(|&dim| dim as u64)) {
            bail!(self.gguf.tensor_error(tensor, format_args!("has the shape {:?}, it must be {dims:?}", tensor.dims)));
        }
        Ok(tensor)
    }

    fn matrix(&mut self, name: &str, rows: usize, cols: usize) -> Result<Matrix> {
        let tensor = self.tensor(name, &[cols, rows])?;
        Ok(Matrix { dtype: tensor.dtype, rows, cols, data: tensor.data() })
    }

    /// A norm or bias: a float vector, copied.
    fn vector(&mut self, name: &str, len: usize) -> Result<Vec<f32>> {
        let tensor = self.tensor(name, &[len])?;
        if tensor.dtype.is_quantized() {
            let what = format_args!("is a vector of type {}, it must be a float type", tensor.dtype.name());
            bail!(self.gguf.tensor_error(tensor, what));
        }
        let mut values = vec![0.0; len];
        dequantize_row(tensor.dtype, &tensor.data(), &mut values);
        Ok(values)
    }

    fn optional_vector(&mut self, name: &str, len: usize) -> Result<Option<Vec<f32>>> {
        match self.gguf.tensor(name) {
            Some(_) => self.vector(name, len).map(Some),
            None => Ok(None),
        }
    }

    /// `PREFIX.weight` (rows, cols) and `PREFIX.bias` (rows), if there.
    fn linear(&mut self, prefix: &str, rows: usize, cols: usize) -> Result<Linear> {
        let weight = self.matrix(&format!("{prefix}.weight"), rows, cols)?;
        let bias = self.optional_vector(&format!("{prefix}.bias"), rows)?;
        Ok(Linear { weight, bias })
    }

    fn layer(&mut self, n: usize, config: &Config) -> Result<Layer> {
        let shape = config.layers[n];
        let (q_dim, kv_dim) = (shape.n_heads * config.head_dim, shape.n_kv_heads * config.head_dim);
        let name = |part: &str| format!("blk.{n}.{part}");
        let attn_norm = self.vector(&name("attn_norm.weight"), config.dim)?;
        let [attn_q, attn_k, attn_v] = match self.gguf.tensor(&name("attn_qkv.weight")) {
            Some(_) => self.fused_qkv(&name("attn_qkv"), q_dim, kv_dim, config.dim)?,
            None => [
                self.linear(&name("attn_q"), q_dim, config.dim)?,
                self.linear(&name("attn_k"), kv_dim, config.dim)?,
                self.linear(&name("attn_v"), kv_dim, config.dim)?,
            ],
        };
        let attn_output = self.linear(&name("attn_output"), config.dim, q_dim)?;
        let ffn_norm = self.vector(&name("ffn_norm.weight"), config.dim)?;
        let ffn = match config.experts {
            Some(experts) => self.experts(n, config.dim, shape.hidden_dim, experts)?,
            None => FeedForward::Dense(Expert {
                gate: self.linear(&name("ffn_gate"), shape.hidden_dim, config.dim)?,
                up: self.linear(&name("ffn_up"), shape.hidden_dim, config.dim)?,
                down: self.linear(&name("ffn_down"), config.dim, shape.hidden_dim)?,
            }),
        };
        Ok(Layer { attn_norm, attn_q, attn_k, attn_v, attn_output, ffn_norm, ffn })
    }

    /// One matrix of q, k and v rows, taken apart: the same rows give the same bits.
    fn fused_qkv(&mut self, prefix: &str, q_dim: usize, kv_dim: usize, dim: usize) -> Result<[Linear; 3]> {
        let fused = self.linear(prefix, q_dim + 2 * kv_dim, dim)?;
        let part = |rows: Range<usize>| Linear {
            weight: fused.weight.part(rows.clone()),
            bias: fused.bias.as_ref().map(|bias| bias[rows].to_vec()),
        };
        Ok([part(0..q_dim), part(q_dim..q_dim + kv_dim), part(q_dim + kv_dim..q_dim + 2 * kv_dim)])
    }

    fn experts(&mut self, n: usize, dim: usize, hidden_dim: usize, shape: ExpertShape) -> Result<FeedForward> {
        let router = self.linear(&format!("blk.{n}.ffn_gate_inp"), shape.count, dim)?;
        let mut stack = |part: &str, rows: usize, cols: usize| {
            let tensor = self.tensor(&format!("blk.{n}.{part}.weight"), &[cols, rows, shape.count])?;
            Ok::<_, anyhow::Error>(Matrix { dtype: tensor.dtype, rows: rows * shape.count, cols, data: tensor.data() })
        };
        let gates = stack("ffn_gate_exps", hidden_dim, dim)?;
        let ups = stack("ffn_up_exps", hidden_dim, dim)?;
        let downs = stack("ffn_down_exps", dim, hidden_dim)?;
        let slice =
            |stack: &Matrix, e: usize, rows: usize| Linear { weight: stack.part(e * rows..(e + 1) * rows), bias: None };
        let expert = |e: usize| Expert {
            gate: slice(&gates, e, hidden_dim),
            up: slice(&ups, e, hidden_dim),
            down: slice(&downs, e, dim),
        };
        Ok(FeedForward::Experts { router, experts: (0..shape.count).map(expert).collect(), used: shape.used })
    }

    fn unused(&self) -> Vec<String> {
        let names = self.gguf.tensors().iter().map(|tensor| &tensor.name);
        names.filter(|name| !self.used.contains(name.as_str())).cloned().collect()
    }
}
