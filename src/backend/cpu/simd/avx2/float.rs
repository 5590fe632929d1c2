//! Float kernels: activation quantizer, sixteen-lane dot product, softmax, silu.

use std::arch::x86_64::*;

use super::scalar::{self, EXP_HIGH, EXP_LOW, EXP_SERIES, LN2_HIGH, LN2_LOW};
use crate::backend::cpu::simd::{LANES, Queries, SPAN_TOKENS};
use crate::quant::GROUP;
use crate::quant::activation::{BASE, Digit, LEVELS, Precision, QuantTile};

/// One activation row -> int8 groups of a tile.
#[target_feature(enable = "avx2,fma,f16c")]
pub fn quantize(x: &[f32], tile: &mut QuantTile, token: usize) {
    let precision = tile.precision();
    for (g, x) in x.as_chunks::<GROUP>().0.iter().enumerate() {
        // SAFETY: four loads of eight floats from a group of 32.
        let v = unsafe {
            let load = |i: usize| _mm256_loadu_ps(x.as_ptr().add(8 * i));
            [load(0), load(1), load(2), load(3)]
        };
        let max = max_of(max_of_lanes(v[0], v[1]), max_of_lanes(v[2], v[3]));
        let (scale, inv) = precision.scale_of(max);
        match precision {
            Precision::Int8 => tile.put(token, g, scale, &[digit(round_to_levels(v, inv))]),
            Precision::Int16 => {
                let (high, low) = two_digits(v, inv);
                tile.put(token, g, scale, &[digit(high), digit(low)]);
            }
        }
    }
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn digit(bytes: __m256i) -> Digit {
    let mut q = [0i8; GROUP];
    // SAFETY: 32 bytes into 32.
    unsafe { _mm256_storeu_si256(q.as_mut_ptr().cast(), bytes) };
    let quads = _mm256_maddubs_epi16(_mm256_set1_epi8(1), bytes);
    let pairs = _mm256_madd_epi16(quads, _mm256_set1_epi16(1));
    Digit { q, half_sums: [sum_i32(_mm256_castsi256_si128(pairs)), sum_i32(_mm256_extracti128_si256::<1>(pairs))] }
}

/// 32 floats times `inv` -> the digit that counts 255 and the other, as `QuantTile::quantize` forms them.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn two_digits(v: [__m256; 4], inv: f32) -> (__m256i, __m256i) {
    const NEAREST: i32 = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
    let (levels, inv) = (BASE * LEVELS + LEVELS, _mm256_set1_ps(inv));
    let (lowest, highest) = (_mm256_set1_ps(-levels), _mm256_set1_ps(levels));
    let (mut high, mut low) = (v, v);
    for (i, v) in v.into_iter().enumerate() {
        let level = _mm256_min_ps(_mm256_max_ps(_mm256_mul_ps(v, inv), lowest), highest);
        let level = _mm256_round_ps::<NEAREST>(level);
        high[i] = _mm256_round_ps::<NEAREST>(_mm256_mul_ps(level, _mm256_set1_ps(1.0 / BASE)));
        low[i] = _mm256_fnmadd_ps(_mm256_set1_ps(BASE), high[i], level);
    }
    (to_bytes(high), to_bytes(low))
}

/// |a| or |b|, whichever is larger, in every lane; compared as integers, so that NaN wins.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub fn max_of_lanes(a: __m256, b: __m256) -> __m256i {
    let magnitude = |v: __m256| _mm256_and_si256(_mm256_castps_si256(v), _mm256_set1_epi32(0x7fff_ffff));
    _mm256_max_epi32(magnitude(a), magnitude(b))
}

/// The largest of sixteen magnitudes.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub fn max_of(a: __m256i, b: __m256i) -> f32 {
    let max = _mm256_max_epi32(a, b);
    let max = _mm_max_epi32(_mm256_castsi256_si128(max), _mm256_extracti128_si256::<1>(max));
    let max = _mm_max_epi32(max, _mm_shuffle_epi32::<0b01_00_11_10>(max));
    let max = _mm_max_epi32(max, _mm_shuffle_epi32::<0b10_11_00_01>(max));
    f32::from_bits(_mm_cvtsi128_si32(max) as u32)
}

/// 32 floats times `inv` -> int8: clamped, then rounded by the hardware's default (nearest even).
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub fn round_to_levels(v: [__m256; 4], inv: f32) -> __m256i {
    let (low, high, inv) = (_mm256_set1_ps(-LEVELS), _mm256_set1_ps(LEVELS), _mm256_set1_ps(inv));
    let level = |v: __m256| _mm256_min_ps(_mm256_max_ps(_mm256_mul_ps(v, inv), low), high);
    to_bytes([level(v[0]), level(v[1]), level(v[2]), level(v[3])])
}

/// 32 floats within int8 -> bytes, rounded.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn to_bytes(v: [__m256; 4]) -> __m256i {
    let int = |v: __m256| _mm256_cvtps_epi32(v);
    let words = [_mm256_packs_epi32(int(v[0]), int(v[1])), _mm256_packs_epi32(int(v[2]), int(v[3]))];
    let bytes = _mm256_packs_epi16(words[0], words[1]);
    // the packs work within 128-bit halves: put the eight dwords back in order
    _mm256_permutevar8x32_epi32(bytes, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7))
}

#[target_feature(enable = "avx2,fma,f16c")]
fn sum_i32(v: __m128i) -> i32 {
    let v = _mm_add_epi32(v, _mm_shuffle_epi32::<0b01_00_11_10>(v));
    _mm_cvtsi128_si32(_mm_add_epi32(v, _mm_shuffle_epi32::<0b10_11_00_01>(v)))
}

/// Sum of sixteen lanes as a binary tree: i + 8, + 4, + 2, + 1.
#[target_feature(enable = "avx2,fma,f16c")]
fn tree_sum(low: __m256, high: __m256) -> f32 {
    let v = _mm256_add_ps(low, high);
    let v = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps::<1>(v));
    let v = _mm_add_ps(v, _mm_movehl_ps(v, v));
    _mm_cvtss_f32(_mm_add_ss(v, _mm_movehdup_ps(v)))
}

#[target_feature(enable = "avx2,fma,f16c")]
fn load16(x: &[f32; LANES]) -> (__m256, __m256) {
    // SAFETY: two loads of eight floats from sixteen.
    unsafe { (_mm256_loadu_ps(x.as_ptr()), _mm256_loadu_ps(x.as_ptr().add(8))) }
}

#[target_feature(enable = "avx2,fma,f16c")]
pub fn dot(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len(), "dot product");
    let (mut low, mut high) = (_mm256_setzero_ps(), _mm256_setzero_ps());
    let (a_chunks, a_tail) = a.as_chunks::<LANES>();
    let (b_chunks, b_tail) = b.as_chunks::<LANES>();
    for (a, b) in a_chunks.iter().zip(b_chunks) {
        let (a, b) = (load16(a), load16(b));
        low = _mm256_fmadd_ps(a.0, b.0, low);
        high = _mm256_fmadd_ps(a.1, b.1, high);
    }
    if !a_tail.is_empty() {
        let (a, b) = (scalar::padded(a_tail), scalar::padded(b_tail));
        let (a, b) = (load16(&a), load16(&b));
        low = _mm256_fmadd_ps(a.0, b.0, low);
        high = _mm256_fmadd_ps(a.1, b.1, high);
    }
    tree_sum(low, high)
}

#[target_feature(enable = "avx2,fma,f16c")]
pub fn scores(queries: &Queries<f32>, k_rows: &[f32], n: usize, scale: f32, out: &mut [f32]) {
    for (query, out) in queries.each().zip(out.chunks_mut(SPAN_TOKENS)) {
        for (score, k) in out[..n].iter_mut().zip(k_rows.chunks_exact(query.len())) {
            *score = dot(query, k) * scale;
        }
    }
}

/// `scalar::exp` in eight lanes, operation by operation.
#[target_feature(enable = "avx2,fma,f16c")]
fn exp(x: __m256) -> __m256 {
    let too_low = _mm256_cmp_ps::<_CMP_LT_OQ>(x, _mm256_set1_ps(EXP_LOW));
    // min returns its second operand for NaN: x comes second, so that NaN goes through
    let clamped = _mm256_min_ps(_mm256_set1_ps(EXP_HIGH), x);
    let n = _mm256_mul_ps(clamped, _mm256_set1_ps(std::f32::consts::LOG2_E));
    let n = _mm256_round_ps::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(n);
    let r = _mm256_fmadd_ps(n, _mm256_set1_ps(-LN2_HIGH), clamped);
    let r = _mm256_fmadd_ps(n, _mm256_set1_ps(-LN2_LOW), r);
    let mut tail = _mm256_setzero_ps();
    for c in EXP_SERIES {
        tail = _mm256_fmadd_ps(tail, r, _mm256_set1_ps(c));
    }
    let series = _mm256_add_ps(_mm256_fmadd_ps(_mm256_mul_ps(r, r), tail, r), _mm256_set1_ps(1.0));
    let exponent = _mm256_slli_epi32::<23>(_mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127)));
    let result = _mm256_mul_ps(series, _mm256_castsi256_ps(exponent));
    _mm256_andnot_ps(too_low, result)
}

#[target_feature(enable = "avx2,fma,f16c")]
pub fn softmax_span(scores: &mut [f32]) -> (f32, f32) {
    let max = max(scores);
    let m = _mm256_set1_ps(max);
    let mut lanes = [_mm256_setzero_ps(); 2];
    let (chunks, tail) = scores.as_chunks_mut::<8>();
    let n_chunks = chunks.len();
    for (i, chunk) in chunks.iter_mut().enumerate() {
        // SAFETY: a load and a store of eight floats.
        let p = exp(_mm256_sub_ps(unsafe { _mm256_loadu_ps(chunk.as_ptr()) }, m));
        // SAFETY: as above.
        unsafe { _mm256_storeu_ps(chunk.as_mut_ptr(), p) };
        lanes[i % 2] = _mm256_add_ps(lanes[i % 2], p);
    }
    if !tail.is_empty() {
        let mut last = [0f32; 8];
        for (last, s) in last.iter_mut().zip(tail) {
            *s = scalar::exp(*s - max);
            *last = *s;
        }
        // SAFETY: a load of eight floats. Lanes past the tail add 0, which changes no sum of non-negative numbers.
        let p = unsafe { _mm256_loadu_ps(last.as_ptr()) };
        lanes[n_chunks % 2] = _mm256_add_ps(lanes[n_chunks % 2], p);
    }
    (max, tree_sum(lanes[0], lanes[1]))
}

/// The largest score; NaN never wins, it reaches the result through its own exp.
#[target_feature(enable = "avx2,fma,f16c")]
fn max(scores: &[f32]) -> f32 {
    let (chunks, tail) = scores.as_chunks::<8>();
    let mut best = _mm256_set1_ps(f32::NEG_INFINITY);
    for chunk in chunks {
        // SAFETY: a load of eight floats. max returns its second operand for NaN.
        best = _mm256_max_ps(unsafe { _mm256_loadu_ps(chunk.as_ptr()) }, best);
    }
    let mut lanes = [0f32; 8];
    // SAFETY: a store of eight floats.
    unsafe { _mm256_storeu_ps(lanes.as_mut_ptr(), best) };
    lanes.iter().chain(tail).fold(f32::NEG_INFINITY, |max, &s| if s > max { s } else { max })
}

/// 32 elements of o stay in registers over all tokens.
#[target_feature(enable = "avx2,fma,f16c")]
pub fn accumulate(p: &[f32], v_rows: &[f32], n: usize, head_dim: usize, o: &mut [f32]) {
    assert!(v_rows.len() >= n * head_dim, "a row of V per probability");
    for (o, p) in o.chunks_exact_mut(head_dim).zip(p.chunks(SPAN_TOKENS)) {
        accumulate_query(&p[..n], v_rows, o);
    }
}

#[target_feature(enable = "avx2,fma,f16c")]
fn accumulate_query(p: &[f32], v_rows: &[f32], o: &mut [f32]) {
    let head_dim = o.len();
    let mut at = 0;
    while at + 32 <= head_dim {
        accumulate_at::<4>(p, v_rows, o, at);
        at += 32;
    }
    while at + 8 <= head_dim {
        accumulate_at::<1>(p, v_rows, o, at);
        at += 8;
    }
    for (o, at) in o[at..].iter_mut().zip(at..) {
        for (i, &p) in p.iter().enumerate() {
            *o = p.mul_add(v_rows[i * head_dim + at], *o);
        }
    }
}

/// `scalar::merge` with the instructions of this table.
#[target_feature(enable = "avx2,fma,f16c")]
pub fn merge(ml: &mut (f32, f32), o: &mut [f32], span_ml: (f32, f32), span_o: &[f32]) {
    scalar::merge(ml, o, span_ml, span_o);
}

/// Every cache line of `bytes`, into the L2 cache.
#[target_feature(enable = "avx2,fma,f16c")]
pub fn prefetch(bytes: &[u8]) {
    for line in bytes.chunks(64) {
        _mm_prefetch::<_MM_HINT_T1>(line.as_ptr().cast());
    }
}

#[target_feature(enable = "avx2,fma,f16c")]
fn accumulate_at<const N: usize>(p: &[f32], v_rows: &[f32], o: &mut [f32], at: usize) {
    let head_dim = o.len();
    let o = &mut o[at..at + 8 * N];
    // SAFETY: 8 * N floats of `o`.
    let mut sums: [__m256; N] = std::array::from_fn(|i| unsafe { _mm256_loadu_ps(o.as_ptr().add(8 * i)) });
    for (i, &p) in p.iter().enumerate() {
        let p = _mm256_set1_ps(p);
        let v = &v_rows[i * head_dim + at..i * head_dim + at + 8 * N];
        for (j, sum) in sums.iter_mut().enumerate() {
            // SAFETY: 8 * N floats of `v`.
            *sum = _mm256_fmadd_ps(p, unsafe { _mm256_loadu_ps(v.as_ptr().add(8 * j)) }, *sum);
        }
    }
    for (i, sum) in sums.iter().enumerate() {
        // SAFETY: 8 * N floats of `o`.
        unsafe { _mm256_storeu_ps(o.as_mut_ptr().add(8 * i), *sum) };
    }
}

#[target_feature(enable = "avx2,fma,f16c")]
pub fn silu_mul(gate: &mut [f32], up: &[f32]) {
    assert_eq!(gate.len(), up.len(), "gate and up");
    let (gate, gate_tail) = gate.as_chunks_mut::<8>();
    let (up, up_tail) = up.as_chunks::<8>();
    for (gate, up) in gate.iter_mut().zip(up) {
        // SAFETY: two loads and a store of eight floats.
        let (g, u) = unsafe { (_mm256_loadu_ps(gate.as_ptr()), _mm256_loadu_ps(up.as_ptr())) };
        let minus_g = _mm256_xor_ps(g, _mm256_set1_ps(-0.0));
        let silu = _mm256_div_ps(g, _mm256_add_ps(_mm256_set1_ps(1.0), exp(minus_g)));
        // SAFETY: as above.
        unsafe { _mm256_storeu_ps(gate.as_mut_ptr(), _mm256_mul_ps(silu, u)) };
    }
    (scalar::KERNELS.silu_mul)(gate_tail, up_tail);
}
