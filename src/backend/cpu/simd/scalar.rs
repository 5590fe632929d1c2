//! The plain kernels: the specification of every bit, and what runs where no SIMD table fits.
//!
//! They follow the arithmetic contract word by word. `mul_add` is one rounded operation by definition; in a build
//! without FMA it is a library call, about 13 times slower than the instruction but equal in every bit.

use std::ops::Range;

use half::f16;

use super::{Kernels, LANES, Queries, SPAN_TOKENS};
use crate::backend::cpu::threads::ColumnBlock;
use crate::kv::rows;
use crate::model::Matrix;
use crate::quant::activation::{BASE, Precision, QuantTile, TILE, max_magnitude, round_to_level};
use crate::quant::{self, Form, Group};

pub static KERNELS: Kernels = Kernels {
    name: "scalar",
    quantize: |x, tile, token| tile.quantize(token, x),
    matmul_quantized,
    matmul_float,
    dot,
    scores,
    scores_int8,
    softmax_span,
    accumulate,
    scale,
    merge,
    silu_mul,
    encode: rows::encode,
    widen: rows::widen,
    quantize_head,
    prefetch: |_| {},
};

/// One step of the quantized dot product: adds group `g` of a token times `w` to its accumulator.
fn add_group(form: Form, w: &Group, x: &QuantTile, g: usize, token: usize, acc: f32) -> f32 {
    let digit_sum = |digit: usize| {
        let xq = x.group(g, digit, token);
        let half_dot = |h: usize| -> i32 {
            let half = h * 16..h * 16 + 16;
            w.q[half.clone()].iter().zip(&xq[half]).map(|(&w, &x)| i32::from(w) * i32::from(x)).sum()
        };
        (w.sub_scale[0] * half_dot(0) + w.sub_scale[1] * half_dot(1)) as f32
    };
    let sum = match x.precision() {
        Precision::Int8 => digit_sum(0),
        Precision::Int16 => digit_sum(0).mul_add(BASE, digit_sum(1)),
    };
    let x_scale = x.x_scale(g)[token];
    let acc = sum.mul_add(w.w_scale * x_scale, acc);
    match form {
        Form::Scale | Form::Split => acc,
        Form::ScaleMin => (-w.w_min).mul_add(x.x_sum(g)[token], acc),
        Form::SplitMin => {
            let min_sum = w.sub_min[0] * x.half_sums(g, 0)[token] + w.sub_min[1] * x.half_sums(g, 1)[token];
            (-w.w_min).mul_add(min_sum as f32 * x_scale, acc)
        }
    }
}

fn matmul_quantized(w: &Matrix, rows: Range<usize>, x: &[QuantTile], _: &[u8], out: &mut ColumnBlock, column: usize) {
    let form = w.dtype.form().expect("only quantized matrices come here");
    for (row, column) in rows.zip(column..) {
        let data = w.rows_data(row..row + 1);
        let mut first_token = 0;
        for tile in x {
            let mut acc = [0f32; TILE];
            for g in 0..w.cols / quant::GROUP {
                let group = quant::group(w.dtype, data, g);
                for (token, acc) in acc.iter_mut().enumerate().take(tile.width()) {
                    *acc = add_group(form, &group, tile, g, token, *acc);
                }
            }
            for (token, acc) in acc.iter().enumerate().take(tile.width()) {
                out.cells(first_token + token, column..column + 1)[0] = *acc;
            }
            first_token += tile.width();
        }
    }
}

fn matmul_float(w: &Matrix, rows: Range<usize>, x: &[f32], out: &mut ColumnBlock, column: usize) {
    super::float_rows(w, rows, x, out, column, dot);
}

/// Sixteen interleaved partial sums (element i in lane i mod 16) by FMA, added up as a binary tree; a short tail is
/// filled up with zeros.
fn dot(a: &[f32], b: &[f32]) -> f32 {
    let mut lanes = [0f32; LANES];
    let (a_chunks, a_tail) = a.as_chunks::<LANES>();
    let (b_chunks, b_tail) = b.as_chunks::<LANES>();
    let mut add = |a: &[f32; LANES], b: &[f32; LANES]| {
        for i in 0..LANES {
            lanes[i] = a[i].mul_add(b[i], lanes[i]);
        }
    };
    a_chunks.iter().zip(b_chunks).for_each(|(a, b)| add(a, b));
    if !a_tail.is_empty() {
        add(&padded(a_tail), &padded(b_tail));
    }
    tree_sum(lanes)
}

/// Up to 15 values, filled up with zeros.
pub fn padded(tail: &[f32]) -> [f32; LANES] {
    std::array::from_fn(|i| tail.get(i).copied().unwrap_or(0.0))
}

/// Lane i + lane i + 8, then + 4, + 2, + 1.
fn tree_sum(mut lanes: [f32; LANES]) -> f32 {
    for width in [8, 4, 2, 1] {
        for i in 0..width {
            lanes[i] += lanes[i + width];
        }
    }
    lanes[0]
}

fn scores(queries: &Queries<f32>, k_rows: &[f32], n: usize, scale: f32, out: &mut [f32]) {
    for (query, out) in queries.each().zip(out.chunks_mut(SPAN_TOKENS)) {
        for (score, k) in out[..n].iter_mut().zip(k_rows.chunks_exact(query.len())) {
            *score = dot(query, k) * scale;
        }
    }
}

fn scores_int8(queries: &Queries<i8>, q_scales: &[f32], k_rows: &[u8], k_scales: &[u8], n: usize, out: &mut [f32]) {
    for ((query, q_scale), out) in queries.each().zip(q_scales).zip(out.chunks_mut(SPAN_TOKENS)) {
        let keys = k_rows.chunks_exact(query.len()).zip(k_scales.as_chunks::<2>().0);
        for (score, (k, k_scale)) in out[..n].iter_mut().zip(keys) {
            let dot: i32 = query.iter().zip(k).map(|(&q, &k)| i32::from(q) * i32::from(k as i8)).sum();
            *score = dot as f32 * (q_scale * f16::from_le_bytes(*k_scale).to_f32());
        }
    }
}

fn softmax_span(scores: &mut [f32]) -> (f32, f32) {
    let max = scores.iter().fold(f32::NEG_INFINITY, |max, &s| if s > max { s } else { max });
    scores.iter_mut().for_each(|s| *s = exp(*s - max));
    let mut lanes = [0f32; LANES];
    for (i, p) in scores.iter().enumerate() {
        lanes[i % LANES] += p;
    }
    (max, tree_sum(lanes))
}

fn accumulate(p: &[f32], v_rows: &[f32], n: usize, head_dim: usize, o: &mut [f32]) {
    for (o, p) in o.chunks_exact_mut(head_dim).zip(p.chunks(SPAN_TOKENS)) {
        for (&p, v) in p[..n].iter().zip(v_rows.chunks_exact(head_dim)) {
            for (o, &v) in o.iter_mut().zip(v) {
                *o = p.mul_add(v, *o);
            }
        }
    }
}

fn scale(p: &mut [f32], scales: &[u8]) {
    for (p, scale) in p.iter_mut().zip(scales.as_chunks::<2>().0) {
        *p *= f16::from_le_bytes(*scale).to_f32();
    }
}

/// Inlined into every table, so that its exponentials use the table's instructions.
#[inline(always)]
pub fn merge(ml: &mut (f32, f32), o: &mut [f32], span_ml: (f32, f32), span_o: &[f32]) {
    let max = if span_ml.0 > ml.0 { span_ml.0 } else { ml.0 };
    let (old, new) = (exp(ml.0 - max), exp(span_ml.0 - max));
    *ml = (max, ml.1 * old + span_ml.1 * new);
    for (o, span_o) in o.iter_mut().zip(span_o) {
        *o = *o * old + *span_o * new;
    }
}

fn silu_mul(gate: &mut [f32], up: &[f32]) {
    for (g, &u) in gate.iter_mut().zip(up) {
        *g = *g / (1.0 + exp(-*g)) * u;
    }
}

/// A head of q -> int8, like one activation group.
fn quantize_head(head: &[f32], q: &mut [i8]) -> f32 {
    let (scale, inv) = Precision::Int8.scale_of(max_magnitude(head));
    q.iter_mut().zip(head).for_each(|(q, x)| *q = round_to_level(x * inv));
    scale
}

/// Inputs below give 0: the result would be subnormal.
pub const EXP_LOW: f32 = -87.336_54;
/// Inputs above give exp(88), 1.65e38: large enough for every use here, and its exponent still fits.
pub const EXP_HIGH: f32 = 88.0;
/// ln 2 in two parts; the first has few enough bits that n times it is exact.
pub const LN2_HIGH: f32 = 0.693_145_75;
pub const LN2_LOW: f32 = 1.428_606_8e-6;
/// 1/7!, 1/6!, ... 1/2!: on |r| <= ln(2)/2 the series misses by r^8/8! < 6e-9, a tenth of half a unit in the last place.
pub const EXP_SERIES: [f32; 6] = [1.0 / 5040.0, 1.0 / 720.0, 1.0 / 120.0, 1.0 / 24.0, 1.0 / 6.0, 0.5];

/// e^x as the contract fixes it: n = round(x / ln 2), the series on the rest, times 2^n. NaN stays NaN.
#[inline]
pub fn exp(x: f32) -> f32 {
    if x.is_nan() {
        return x;
    }
    if x < EXP_LOW {
        return 0.0;
    }
    let x = if x > EXP_HIGH { EXP_HIGH } else { x };
    let n = (x * std::f32::consts::LOG2_E).round_ties_even();
    let r = n.mul_add(-LN2_LOW, n.mul_add(-LN2_HIGH, x));
    let tail = EXP_SERIES.iter().fold(0.0, |sum: f32, &c| sum.mul_add(r, c));
    let series = (r * r).mul_add(tail, r) + 1.0;
    series * f32::from_bits(((n as i32 + 127) as u32) << 23)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exp_is_within_two_units_in_the_last_place() {
        let mut worst = 0f64;
        for i in -87_000..88_000 {
            let x = i as f32 * 1e-3;
            let exact = libm::exp(f64::from(x));
            worst = worst.max((f64::from(exp(x)) - exact).abs() / exact);
        }
        assert!(worst < 2.0 * 2f64.powi(-24), "relative error {worst:e}");
        assert_eq!((exp(0.0), exp(-100.0), exp(f32::NEG_INFINITY)), (1.0, 0.0, 0.0));
        assert!(exp(f32::NAN).is_nan() && exp(1e9) == exp(88.0));
    }
}
