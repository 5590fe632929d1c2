//! Tables of kernels, one per instruction set, chosen once at start. Every table gives the bits of `scalar`.

#[cfg(target_arch = "x86_64")]
mod avx2;
mod scalar;

use std::ops::Range;

use anyhow::{Result, bail};

use super::threads::ColumnBlock;
use crate::kv::layout::KvType;
use crate::model::Matrix;
use crate::quant::activation::QuantRow;

pub use scalar::exp;

/// Interleaved partial sums of float dot products: a part of the contract, not of a machine.
const LANES: usize = 16;

/// Which table to use (`--simd`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Simd {
    Scalar,
    Avx2,
}

impl Simd {
    pub const ALL: [Simd; 2] = [Simd::Scalar, Simd::Avx2];

    pub const fn name(self) -> &'static str {
        match self {
            Simd::Scalar => "scalar",
            Simd::Avx2 => "avx2",
        }
    }

    /// The table, if this CPU can run it.
    pub fn kernels(self) -> Option<&'static Kernels> {
        match self {
            Simd::Scalar => Some(&scalar::KERNELS),
            #[cfg(target_arch = "x86_64")]
            Simd::Avx2 => avx2::kernels(),
            #[cfg(not(target_arch = "x86_64"))]
            Simd::Avx2 => None,
        }
    }
}

/// The table asked for, or the best that this CPU runs.
pub fn choose(asked: Option<Simd>) -> Result<&'static Kernels> {
    match asked {
        Some(simd) => match simd.kernels() {
            Some(kernels) => Ok(kernels),
            None => bail!("this CPU does not have the instructions of --simd {}", simd.name()),
        },
        None => Ok(Simd::ALL.iter().rev().find_map(|simd| simd.kernels()).expect("scalar runs everywhere")),
    }
}

/// The functions that differ by instruction set. Lengths are the caller's promise and are asserted inside.
pub struct Kernels {
    pub name: &'static str,
    /// (cols) f32 -> int8 groups.
    pub quantize: fn(x: &[f32], row: &mut QuantRow),
    /// `rows` of a quantized matrix times the tokens of `x`: out[token][column..] = W[rows] x[token].
    pub matmul_quantized: fn(w: &Matrix, rows: Range<usize>, x: &[QuantRow], out: &mut ColumnBlock, column: usize),
    /// The same for F32, F16 and BF16 on `x` (tokens, cols) f32.
    pub matmul_float: fn(w: &Matrix, rows: Range<usize>, x: &[f32], out: &mut ColumnBlock, column: usize),
    /// Float dot product in sixteen lanes.
    pub dot: fn(a: &[f32], b: &[f32]) -> f32,
    /// out[i] = dot(q, k_rows[i]) * scale; `k_rows` (tokens, head_dim).
    pub scores: fn(q: &[f32], k_rows: &[f32], scale: f32, out: &mut [f32]),
    /// scores -> exp(score - max) in place; (max, sum).
    pub softmax_span: fn(scores: &mut [f32]) -> (f32, f32),
    /// o += p[i] * v_rows[i], in token order; `v_rows` (tokens, head_dim).
    pub accumulate: fn(p: &[f32], v_rows: &[f32], o: &mut [f32]),
    /// gate = gate / (1 + exp(-gate)) * up
    pub silu_mul: fn(gate: &mut [f32], up: &[f32]),
    /// One head row -> its stored form.
    pub encode: fn(KvType, row: &[f32], stored: &mut [u8]),
    /// Stored head rows -> f32.
    pub decode: fn(KvType, stored: &[u8], rows: &mut [f32]),
}

/// Rows of a float matrix, each turned into f32 once for all tokens.
fn float_rows(
    w: &Matrix,
    rows: Range<usize>,
    x: &[f32],
    out: &mut ColumnBlock,
    column: usize,
    dot: fn(&[f32], &[f32]) -> f32,
) {
    let mut weights = vec![0f32; w.cols];
    for (i, row) in rows.enumerate() {
        w.dequantize_row(row, &mut weights);
        for (token, x) in x.chunks_exact(w.cols).enumerate() {
            out.cells(token, column + i..column + i + 1)[0] = dot(&weights, x);
        }
    }
}
