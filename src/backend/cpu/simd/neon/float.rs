//! Float kernels: activation quantizer, softmax, silu.

use std::arch::aarch64::*;

use super::scalar::{self, EXP_HIGH, EXP_LOW, EXP_SERIES, LN2_HIGH, LN2_LOW};
use crate::backend::cpu::simd::LANES;
use crate::quant::GROUP;
use crate::quant::activation::{BASE, Digit, LEVELS, Precision, QuantTile};

/// Sixteen floats, as `LANES` lie in registers.
pub type Sixteen = [float32x4_t; 4];

#[inline]
#[target_feature(enable = "neon")]
pub fn load16(x: &[f32; LANES]) -> Sixteen {
    // SAFETY: four loads of four floats from sixteen.
    std::array::from_fn(|i| unsafe { vld1q_f32(x.as_ptr().add(4 * i)) })
}

#[inline]
#[target_feature(enable = "neon")]
pub fn store16(x: Sixteen, to: &mut [f32; LANES]) {
    for (i, x) in x.into_iter().enumerate() {
        // SAFETY: four stores of four floats into sixteen.
        unsafe { vst1q_f32(to.as_mut_ptr().add(4 * i), x) };
    }
}

/// Sum of sixteen lanes as a binary tree: i + 8, + 4, + 2, + 1.
#[inline]
#[target_feature(enable = "neon")]
pub fn tree_sum(v: Sixteen) -> f32 {
    let v = vaddq_f32(vaddq_f32(v[0], v[2]), vaddq_f32(v[1], v[3]));
    vpadds_f32(vadd_f32(vget_low_f32(v), vget_high_f32(v)))
}

/// One activation row -> int8 groups of a tile.
#[target_feature(enable = "neon")]
pub fn quantize(x: &[f32], tile: &mut QuantTile, token: usize) {
    let precision = tile.precision();
    for (g, x) in x.as_chunks::<GROUP>().0.iter().enumerate() {
        let (x, _) = x.as_chunks::<LANES>();
        let v = [load16(&x[0]), load16(&x[1])];
        let (scale, inv) = precision.scale_of(largest(vmaxq_u32(max_of(v[0]), max_of(v[1]))));
        match precision {
            Precision::Int8 => {
                tile.put(token, g, scale, &[digit([round_to_levels(v[0], inv), round_to_levels(v[1], inv)])])
            }
            Precision::Int16 => {
                let (first, second) = (two_digits(v[0], inv), two_digits(v[1], inv));
                tile.put(token, g, scale, &[digit([first.0, second.0]), digit([first.1, second.1])]);
            }
        }
    }
}

#[inline]
#[target_feature(enable = "neon")]
fn digit(halves: [int8x16_t; 2]) -> Digit {
    let mut q = [0i8; GROUP];
    // SAFETY: two stores of sixteen bytes.
    unsafe {
        vst1q_s8(q.as_mut_ptr(), halves[0]);
        vst1q_s8(q.as_mut_ptr().add(16), halves[1]);
    }
    Digit { q, half_sums: halves.map(|half| i32::from(vaddlvq_s8(half))) }
}

/// The largest of the magnitudes in every lane, compared as integers, so that NaN wins.
#[inline]
#[target_feature(enable = "neon")]
pub fn max_of(v: Sixteen) -> uint32x4_t {
    let v = v.map(|v| vandq_u32(vreinterpretq_u32_f32(v), vdupq_n_u32(0x7fff_ffff)));
    vmaxq_u32(vmaxq_u32(v[0], v[1]), vmaxq_u32(v[2], v[3]))
}

/// The largest of four magnitudes.
#[inline]
#[target_feature(enable = "neon")]
pub fn largest(v: uint32x4_t) -> f32 {
    f32::from_bits(vmaxvq_u32(v))
}

/// v * inv within `levels`; NaN goes to the lower bound.
#[inline]
#[target_feature(enable = "neon")]
fn level(v: float32x4_t, inv: f32, levels: f32) -> float32x4_t {
    vminnmq_f32(vmaxnmq_f32(vmulq_n_f32(v, inv), vdupq_n_f32(-levels)), vdupq_n_f32(levels))
}

/// Sixteen floats times `inv` -> int8: clamped, then rounded to nearest even.
#[inline]
#[target_feature(enable = "neon")]
pub fn round_to_levels(v: Sixteen, inv: f32) -> int8x16_t {
    to_bytes(v.map(|v| level(v, inv, LEVELS)))
}

/// Sixteen floats times `inv` -> the digit that counts 255 and the other, as `QuantTile::quantize` forms them.
#[inline]
#[target_feature(enable = "neon")]
fn two_digits(v: Sixteen, inv: f32) -> (int8x16_t, int8x16_t) {
    let levels = v.map(|v| vrndnq_f32(level(v, inv, BASE * LEVELS + LEVELS)));
    let high = levels.map(|level| vrndnq_f32(vmulq_n_f32(level, 1.0 / BASE)));
    let low = std::array::from_fn(|i| vfmaq_n_f32(levels[i], high[i], -BASE));
    (to_bytes(high), to_bytes(low))
}

/// Floats within int8 -> bytes, rounded to nearest even.
#[inline]
#[target_feature(enable = "neon")]
fn to_bytes(v: Sixteen) -> int8x16_t {
    let v = v.map(|v| vcvtnq_s32_f32(v));
    let words = |a, b| vcombine_s16(vmovn_s32(a), vmovn_s32(b));
    vcombine_s8(vmovn_s16(words(v[0], v[1])), vmovn_s16(words(v[2], v[3])))
}

/// `scalar::exp` in four lanes, operation by operation.
#[inline]
#[target_feature(enable = "neon")]
fn exp(x: float32x4_t) -> float32x4_t {
    let too_low = vcltq_f32(x, vdupq_n_f32(EXP_LOW));
    // a comparison with NaN is false: NaN goes through
    let clamped = vbslq_f32(vcgtq_f32(x, vdupq_n_f32(EXP_HIGH)), vdupq_n_f32(EXP_HIGH), x);
    let n = vrndnq_f32(vmulq_n_f32(clamped, std::f32::consts::LOG2_E));
    let r = vfmaq_n_f32(vfmaq_n_f32(clamped, n, -LN2_HIGH), n, -LN2_LOW);
    let tail = EXP_SERIES.iter().fold(vdupq_n_f32(0.0), |sum, &c| vfmaq_f32(vdupq_n_f32(c), sum, r));
    let series = vaddq_f32(vfmaq_f32(r, vmulq_f32(r, r), tail), vdupq_n_f32(1.0));
    let exponent = vshlq_n_s32::<23>(vaddq_s32(vcvtq_s32_f32(n), vdupq_n_s32(127)));
    let result = vmulq_f32(series, vreinterpretq_f32_s32(exponent));
    vreinterpretq_f32_u32(vbicq_u32(vreinterpretq_u32_f32(result), too_low))
}

#[target_feature(enable = "neon")]
pub fn softmax_span(scores: &mut [f32]) -> (f32, f32) {
    let max = max(scores);
    let mut lanes = [vdupq_n_f32(0.0); 4];
    let mut add = |scores: &mut [f32; LANES]| {
        let p = load16(scores).map(|s| exp(vsubq_f32(s, vdupq_n_f32(max))));
        store16(p, scores);
        lanes = std::array::from_fn(|i| vaddq_f32(lanes[i], p[i]));
    };
    let (chunks, tail) = scores.as_chunks_mut::<LANES>();
    chunks.iter_mut().for_each(&mut add);
    if !tail.is_empty() {
        // e^-infinity is 0, which changes no sum of non-negative numbers
        let mut last = [f32::NEG_INFINITY; LANES];
        last[..tail.len()].copy_from_slice(tail);
        add(&mut last);
        tail.copy_from_slice(&last[..tail.len()]);
    }
    (max, tree_sum(lanes))
}

/// The largest score; NaN never wins, it reaches the result through its own exp.
#[inline]
#[target_feature(enable = "neon")]
fn max(scores: &[f32]) -> f32 {
    let (chunks, tail) = scores.as_chunks::<LANES>();
    let mut best = [vdupq_n_f32(f32::NEG_INFINITY); 4];
    for chunk in chunks {
        let v = load16(chunk);
        best = std::array::from_fn(|i| vbslq_f32(vcgtq_f32(v[i], best[i]), v[i], best[i]));
    }
    let mut lanes = [0f32; LANES];
    store16(best, &mut lanes);
    lanes.iter().chain(tail).fold(f32::NEG_INFINITY, |max, &s| if s > max { s } else { max })
}

#[target_feature(enable = "neon")]
pub fn silu_mul(gate: &mut [f32], up: &[f32]) {
    assert_eq!(gate.len(), up.len(), "gate and up");
    let (gate, gate_tail) = gate.as_chunks_mut::<LANES>();
    let (up, up_tail) = up.as_chunks::<LANES>();
    for (gate, up) in gate.iter_mut().zip(up) {
        let (g, u) = (load16(gate), load16(up));
        let silu = g.map(|g| vdivq_f32(g, vaddq_f32(vdupq_n_f32(1.0), exp(vnegq_f32(g)))));
        store16(std::array::from_fn(|i| vmulq_f32(silu[i], u[i])), gate);
    }
    (scalar::KERNELS.silu_mul)(gate_tail, up_tail);
}
