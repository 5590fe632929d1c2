//! Attention: float dot products, scores of float and int8 keys, sums over V.
//!
//! A dot product has sixteen running sums, four registers. Two queries and two keys at once make sixteen registers of
//! sums, enough to hide the latency of the multiply-add, with half a load per multiply-add. int8 scores take one `sdot`
//! per sixteen elements and key, four keys at once.

use std::arch::aarch64::*;

use super::dot::Dot;
use super::float::{Sixteen, load16, tree_sum};
use super::rows::four_scales;
use super::scalar;
use crate::backend::cpu::simd::{LANES, Queries, SPAN_TOKENS};

/// Keys whose int8 scores are formed together.
const KEYS: usize = 4;

/// The dot products of `Q` rows with `K` others.
#[inline]
#[target_feature(enable = "neon")]
fn dots<const Q: usize, const K: usize>(a: [&[f32]; Q], b: [&[f32]; K]) -> [[f32; K]; Q] {
    let n = a[0].len();
    assert!(a.iter().all(|a| a.len() == n) && b.iter().all(|b| b.len() == n), "dot product");
    let mut sums = [[[vdupq_n_f32(0.0); 4]; K]; Q];
    let mut add = |a: [Sixteen; Q], b: [Sixteen; K]| {
        for i in 0..4 {
            for q in 0..Q {
                for k in 0..K {
                    sums[q][k][i] = vfmaq_f32(sums[q][k][i], a[q][i], b[k][i]);
                }
            }
        }
    };
    let (a, b) = (a.map(|a| a.as_chunks::<LANES>()), b.map(|b| b.as_chunks::<LANES>()));
    for at in 0..n / LANES {
        add(a.map(|(chunks, _)| load16(&chunks[at])), b.map(|(chunks, _)| load16(&chunks[at])));
    }
    if !n.is_multiple_of(LANES) {
        add(a.map(|(_, tail)| load16(&scalar::padded(tail))), b.map(|(_, tail)| load16(&scalar::padded(tail))));
    }
    let mut dots = [[0f32; K]; Q];
    for (dots, sums) in dots.iter_mut().zip(sums) {
        for (dot, sums) in dots.iter_mut().zip(sums) {
            *dot = tree_sum(sums);
        }
    }
    dots
}

#[target_feature(enable = "neon")]
pub fn dot(a: &[f32], b: &[f32]) -> f32 {
    dots([a], [b])[0][0]
}

#[target_feature(enable = "neon")]
pub fn scores(queries: &Queries<f32>, k_rows: &[f32], n: usize, scale: f32, out: &mut [f32]) {
    let head_dim = queries.head_dim;
    assert!(k_rows.len() >= n * head_dim, "a row of K per score");
    let mut outs = out.chunks_mut(SPAN_TOKENS);
    let mut queries = queries.each();
    while let (Some(q), Some(out)) = (queries.next(), outs.next()) {
        let mut next = queries.next().zip(outs.next());
        for i in (0..n).step_by(2) {
            let key = |i: usize| &k_rows[i * head_dim..(i + 1) * head_dim];
            match (&mut next, i + 1 < n) {
                (Some((q2, out2)), true) => {
                    let [first, second] = dots([q, q2], [key(i), key(i + 1)]);
                    out[i..i + 2].copy_from_slice(&first.map(|dot| dot * scale));
                    out2[i..i + 2].copy_from_slice(&second.map(|dot| dot * scale));
                }
                (Some((q2, out2)), false) => {
                    let [[first], [second]] = dots([q, q2], [key(i)]);
                    (out[i], out2[i]) = (first * scale, second * scale);
                }
                (None, true) => {
                    let [first] = dots([q], [key(i), key(i + 1)]);
                    out[i..i + 2].copy_from_slice(&first.map(|dot| dot * scale));
                }
                (None, false) => out[i] = dot(q, key(i)) * scale,
            }
        }
    }
}

/// # Safety
/// The CPU has D's instruction.
#[target_feature(enable = "neon")]
pub unsafe fn scores_int8<D: Dot>(
    queries: &Queries<i8>,
    q_scales: &[f32],
    k_rows: &[u8],
    k_scales: &[u8],
    n: usize,
    out: &mut [f32],
) {
    if !queries.head_dim.is_multiple_of(LANES) {
        return (scalar::KERNELS.scores_int8)(queries, q_scales, k_rows, k_scales, n, out);
    }
    for ((query, q_scale), out) in queries.each().zip(q_scales).zip(out.chunks_mut(SPAN_TOKENS)) {
        // SAFETY: the caller's promise.
        unsafe { query_scores::<D>(query, *q_scale, k_rows, k_scales, &mut out[..n]) };
    }
}

#[target_feature(enable = "neon")]
unsafe fn query_scores<D: Dot>(q: &[i8], q_scale: f32, k_rows: &[u8], k_scales: &[u8], out: &mut [f32]) {
    let (head_dim, n) = (q.len(), out.len());
    assert!(k_rows.len() >= n * head_dim && k_scales.len() >= 2 * n, "a row and a scale per score");
    for (i, out) in out.chunks_mut(KEYS).enumerate() {
        // past the last key it stands in again; its lanes are not stored
        let key = |r: usize| i * KEYS + r.min(out.len() - 1);
        let mut sums = [vdupq_n_s32(0); KEYS];
        for (at, q) in q.as_chunks::<LANES>().0.iter().enumerate() {
            // SAFETY: sixteen bytes of q, and of the row of an existing key; the instruction by the caller's promise.
            unsafe {
                let q = vld1q_s8(q.as_ptr());
                for (r, sum) in sums.iter_mut().enumerate() {
                    let k = vld1q_s8(k_rows.as_ptr().cast::<i8>().add(key(r) * head_dim + at * LANES));
                    *sum = D::quads(*sum, k, q);
                }
            }
        }
        let dots = vpaddq_s32(vpaddq_s32(sums[0], sums[1]), vpaddq_s32(sums[2], sums[3]));
        let k_scale = four_scales(&k_scales[2 * i * KEYS..2 * (i * KEYS + out.len())]);
        let mut lanes = [0f32; KEYS];
        // SAFETY: four floats in and out.
        unsafe {
            let scale = vmulq_n_f32(vld1q_f32(k_scale.as_ptr()), q_scale);
            vst1q_f32(lanes.as_mut_ptr(), vmulq_f32(vcvtq_f32_s32(dots), scale));
        }
        out.copy_from_slice(&lanes[..out.len()]);
    }
}

/// 64 elements of o stay in registers over all tokens.
#[target_feature(enable = "neon")]
pub fn accumulate(p: &[f32], v_rows: &[f32], n: usize, head_dim: usize, o: &mut [f32]) {
    assert!(v_rows.len() >= n * head_dim, "a row of V per probability");
    for (o, p) in o.chunks_exact_mut(head_dim).zip(p.chunks(SPAN_TOKENS)) {
        accumulate_query(&p[..n], v_rows, o);
    }
}

#[target_feature(enable = "neon")]
fn accumulate_query(p: &[f32], v_rows: &[f32], o: &mut [f32]) {
    let head_dim = o.len();
    let mut at = 0;
    while at + 64 <= head_dim {
        accumulate_at::<16>(p, v_rows, o, at);
        at += 64;
    }
    while at + 16 <= head_dim {
        accumulate_at::<4>(p, v_rows, o, at);
        at += 16;
    }
    for (o, at) in o[at..].iter_mut().zip(at..) {
        for (i, &p) in p.iter().enumerate() {
            *o = p.mul_add(v_rows[i * head_dim + at], *o);
        }
    }
}

#[inline]
#[target_feature(enable = "neon")]
fn accumulate_at<const N: usize>(p: &[f32], v_rows: &[f32], o: &mut [f32], at: usize) {
    let head_dim = o.len();
    let o = &mut o[at..at + 4 * N];
    // SAFETY: 4 * N floats of `o`.
    let mut sums: [float32x4_t; N] = std::array::from_fn(|i| unsafe { vld1q_f32(o.as_ptr().add(4 * i)) });
    for (i, &p) in p.iter().enumerate() {
        let v = &v_rows[i * head_dim + at..i * head_dim + at + 4 * N];
        for (j, sum) in sums.iter_mut().enumerate() {
            // SAFETY: 4 * N floats of `v`.
            *sum = vfmaq_n_f32(*sum, unsafe { vld1q_f32(v.as_ptr().add(4 * j)) }, p);
        }
    }
    for (i, sum) in sums.into_iter().enumerate() {
        // SAFETY: 4 * N floats of `o`.
        unsafe { vst1q_f32(o.as_mut_ptr().add(4 * i), sum) };
    }
}
