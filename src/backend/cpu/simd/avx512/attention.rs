//! Attention sixteen elements or keys at a time.
//!
//! Float scores of a page: 16 keys x head_dim / 16 FMAs a query, then 15 adds and 30 shuffles bring the sixteen sums of
//! sixteen lanes into one register in the order of the contract's tree. Int8 scores: the page is transposed once for all
//! queries (24 operations per 16 x 16 bytes), then every query takes head_dim / 4 multiply-adds for sixteen keys.
//! Values: per key and 64 elements four loads for four queries, 16 FMAs, sums in registers over the page.

#![expect(
    clippy::needless_range_loop,
    reason = "constant ranges unroll, and iterators over several arrays do not read better"
)]

use std::arch::x86_64::*;
use std::mem::MaybeUninit;

use super::super::avx2::{float, rows};
use super::super::scalar::{EXP_HIGH, EXP_LOW, EXP_SERIES, LN2_HIGH, LN2_LOW};
use super::super::{Queries, SPAN_TOKENS};
use super::blocks::{Column, dwords};
use crate::kv::layout::{BLOCK_TOKENS, KvType};
use crate::quant::activation::BIAS;

/// Floats of a register, and keys of a page.
const LANES: usize = 16;

const _: () = assert!(BLOCK_TOKENS == LANES);

/// The first `n` of sixteen lanes.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
fn first(n: usize) -> __mmask16 {
    ((1u32 << n.min(LANES)) - 1) as __mmask16
}

/// `Kernels::scores`
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
pub fn scores(queries: &Queries<f32>, k_rows: &[f32], n: usize, scale: f32, out: &mut [f32]) {
    let head_dim = queries.head_dim;
    if !head_dim.is_multiple_of(LANES) || k_rows.len() < LANES * head_dim {
        return float::scores(queries, k_rows, n, scale, out);
    }
    let scale = _mm512_set1_ps(scale);
    for (query, out) in queries.each().zip(out.chunks_mut(SPAN_TOKENS)) {
        let out = &mut out[..n];
        // SAFETY: sixteen rows of keys (those past `n` give scores that are not stored), and `n` scores.
        unsafe {
            let mut sums = [_mm512_setzero_ps(); LANES];
            let mut at = 0;
            while at < head_dim {
                let q = _mm512_loadu_ps(query.as_ptr().add(at));
                for i in 0..LANES {
                    let k = _mm512_loadu_ps(k_rows.as_ptr().add(i * head_dim + at));
                    sums[i] = _mm512_fmadd_ps(q, k, sums[i]);
                }
                at += LANES;
            }
            _mm512_mask_storeu_ps(out.as_mut_ptr(), first(n), _mm512_mul_ps(tree_sums(&sums), scale));
        }
    }
}

/// Lane r of the result: the sixteen lanes of register r added as a binary tree, + 8, + 4, + 2, + 1.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
fn tree_sums(v: &[__m512; LANES]) -> __m512 {
    let mut quarters = [_mm512_setzero_ps(); 4];
    for e in 0..4 {
        // registers e, e + 4, e + 8, e + 12: one 128-bit lane each
        let (ab, cd) = (add_eighths(v[e], v[e + 4]), add_eighths(v[e + 8], v[e + 12]));
        quarters[e] = _mm512_add_ps(_mm512_shuffle_f32x4::<0x88>(ab, cd), _mm512_shuffle_f32x4::<0xdd>(ab, cd));
    }
    let (ab, cd) = (add_pairs(quarters[0], quarters[1]), add_pairs(quarters[2], quarters[3]));
    _mm512_add_ps(_mm512_shuffle_ps::<0x88>(ab, cd), _mm512_shuffle_ps::<0xdd>(ab, cd))
}

/// Lane i + lane i + 8 of both: a's eight sums, then b's.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
fn add_eighths(a: __m512, b: __m512) -> __m512 {
    _mm512_add_ps(_mm512_shuffle_f32x4::<0x44>(a, b), _mm512_shuffle_f32x4::<0xee>(a, b))
}

/// In every 128-bit lane: a0 + a2, a1 + a3, b0 + b2, b1 + b3.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
fn add_pairs(a: __m512, b: __m512) -> __m512 {
    let (a, b) = (_mm512_castps_pd(a), _mm512_castps_pd(b));
    let (low, high) = (_mm512_unpacklo_pd(a, b), _mm512_unpackhi_pd(a, b));
    _mm512_add_ps(_mm512_castpd_ps(low), _mm512_castpd_ps(high))
}

/// Most elements of a head whose transposed page is kept on the stack.
const MAX_HEAD: usize = 256;

/// `Kernels::scores_int8`
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
pub fn scores_int8(queries: &Queries<i8>, q_scales: &[f32], k_rows: &[u8], k_scales: &[u8], n: usize, out: &mut [f32]) {
    let head_dim = queries.head_dim;
    let whole = k_rows.len() >= LANES * head_dim && k_scales.len() >= 2 * LANES;
    if !head_dim.is_multiple_of(LANES) || head_dim > MAX_HEAD || !whole {
        return rows::scores(queries, q_scales, k_rows, k_scales, n, out);
    }
    // [element / 4][key][4], unsigned by BIAS
    let mut keys = [const { MaybeUninit::<__m512i>::uninit() }; MAX_HEAD / 4];
    let page = Column { first: k_rows.as_ptr(), stride: head_dim };
    let flip = _mm512_set1_epi8(-128);
    for part in 0..head_dim / LANES {
        // SAFETY: sixteen bytes of sixteen rows that exist.
        let quads = unsafe { dwords(page, part * LANES) };
        for i in 0..4 {
            keys[4 * part + i].write(_mm512_xor_si512(quads[i], flip));
        }
    }
    // SAFETY: sixteen f16.
    let k_scale = _mm512_cvtph_ps(unsafe { _mm256_loadu_si256(k_scales.as_ptr().cast()) });
    for ((query, q_scale), out) in queries.each().zip(q_scales).zip(out.chunks_mut(SPAN_TOKENS)) {
        let mut dots = [_mm512_setzero_si512(); 4];
        for part in 0..head_dim / LANES {
            for i in 0..4 {
                let quad = 4 * part + i;
                // SAFETY: four bytes of the query; keys of this head's length were written.
                let (q, keys) =
                    unsafe { (query.as_ptr().add(4 * quad).cast::<i32>().read_unaligned(), keys[quad].assume_init()) };
                dots[i] = _mm512_dpbusd_epi32(dots[i], keys, _mm512_set1_epi32(q));
            }
        }
        let dots = _mm512_add_epi32(_mm512_add_epi32(dots[0], dots[1]), _mm512_add_epi32(dots[2], dots[3]));
        let dots = _mm512_cvtepi32_ps(_mm512_add_epi32(dots, _mm512_set1_epi32(-BIAS * sum(query))));
        let scores = _mm512_mul_ps(dots, _mm512_mul_ps(_mm512_set1_ps(*q_scale), k_scale));
        // SAFETY: `n` scores.
        unsafe { _mm512_mask_storeu_ps(out[..n].as_mut_ptr(), first(n), scores) };
    }
}

/// Of bytes in whole sixteens.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
fn sum(q: &[i8]) -> i32 {
    let mut sums = _mm_setzero_si128();
    for part in q.as_chunks::<LANES>().0 {
        // SAFETY: sixteen bytes.
        sums = _mm_dpbusd_epi32(sums, _mm_set1_epi8(1), unsafe { _mm_loadu_si128(part.as_ptr().cast()) });
    }
    let pairs = _mm_add_epi32(sums, _mm_shuffle_epi32::<0b01_00_11_10>(sums));
    _mm_cvtsi128_si32(_mm_add_epi32(pairs, _mm_shuffle_epi32::<0b10_11_00_01>(pairs)))
}

/// `Kernels::widen`
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
pub fn widen(kv_type: KvType, stored: &[u8], values: &mut [f32]) {
    if kv_type == KvType::F32 || !values.len().is_multiple_of(LANES) {
        return rows::widen(kv_type, stored, values);
    }
    assert_eq!(stored.len(), kv_type.row_bytes(values.len()), "stored rows");
    for (i, x) in values.as_chunks_mut::<LANES>().0.iter_mut().enumerate() {
        // SAFETY: 32 or sixteen bytes in, sixteen floats out.
        unsafe {
            let wide = if kv_type == KvType::F16 {
                _mm512_cvtph_ps(_mm256_loadu_si256(stored.as_ptr().add(32 * i).cast()))
            } else {
                _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(stored.as_ptr().add(16 * i).cast())))
            };
            _mm512_storeu_ps(x.as_mut_ptr(), wide);
        }
    }
}

/// `Kernels::scale`
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
pub fn scale(p: &mut [f32], scales: &[u8]) {
    assert!(scales.len() >= 2 * p.len(), "a scale per probability");
    for at in (0..p.len()).step_by(LANES) {
        let mask = first(p.len() - at);
        // SAFETY: the lanes that exist.
        unsafe {
            let scales = _mm256_maskz_loadu_epi16(mask, scales.as_ptr().add(2 * at).cast());
            let p = p.as_mut_ptr().add(at);
            let scaled = _mm512_mul_ps(_mm512_maskz_loadu_ps(mask, p), _mm512_cvtph_ps(scales));
            _mm512_mask_storeu_ps(p, mask, scaled);
        }
    }
}

/// `Kernels::accumulate`
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
pub fn accumulate(p: &[f32], v_rows: &[f32], n: usize, head_dim: usize, o: &mut [f32]) {
    if !head_dim.is_multiple_of(LANES) {
        return float::accumulate(p, v_rows, n, head_dim, o);
    }
    let queries = o.len() / head_dim;
    assert!(v_rows.len() >= n * head_dim && p.len() >= (queries - 1) * SPAN_TOKENS + n, "a page and its probabilities");
    let mut query = 0;
    while query < queries {
        let left = (queries - query).min(4);
        // SAFETY: `left` queries of o and p from `query` on, n rows of v.
        unsafe {
            let (p, v, o) =
                (p.as_ptr().add(query * SPAN_TOKENS), v_rows.as_ptr(), o.as_mut_ptr().add(query * head_dim));
            match left {
                1 => accumulate_queries::<1>(p, v, n, head_dim, o),
                2 => accumulate_queries::<2>(p, v, n, head_dim, o),
                3 => accumulate_queries::<3>(p, v, n, head_dim, o),
                _ => accumulate_queries::<4>(p, v, n, head_dim, o),
            }
        }
        query += left;
    }
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
unsafe fn accumulate_queries<const Q: usize>(p: *const f32, v: *const f32, n: usize, head_dim: usize, o: *mut f32) {
    let mut at = 0;
    // SAFETY: the caller's rows; `at` stays within a head.
    unsafe {
        while at + 4 * LANES <= head_dim {
            accumulate_part::<Q, 4>(p, v.add(at), n, head_dim, o.add(at));
            at += 4 * LANES;
        }
        while at < head_dim {
            accumulate_part::<Q, 1>(p, v.add(at), n, head_dim, o.add(at));
            at += LANES;
        }
    }
}

/// `Q` queries, `V` registers of each.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
unsafe fn accumulate_part<const Q: usize, const V: usize>(
    p: *const f32,
    v: *const f32,
    n: usize,
    head_dim: usize,
    o: *mut f32,
) {
    // SAFETY: the caller's rows.
    unsafe {
        let mut sums = [[_mm512_setzero_ps(); V]; Q];
        for q in 0..Q {
            for j in 0..V {
                sums[q][j] = _mm512_loadu_ps(o.add(q * head_dim + j * LANES));
            }
        }
        for i in 0..n {
            let mut values = [_mm512_setzero_ps(); V];
            for j in 0..V {
                values[j] = _mm512_loadu_ps(v.add(i * head_dim + j * LANES));
            }
            for q in 0..Q {
                let p = _mm512_set1_ps(*p.add(q * SPAN_TOKENS + i));
                for j in 0..V {
                    sums[q][j] = _mm512_fmadd_ps(p, values[j], sums[q][j]);
                }
            }
        }
        for q in 0..Q {
            for j in 0..V {
                _mm512_storeu_ps(o.add(q * head_dim + j * LANES), sums[q][j]);
            }
        }
    }
}

/// `scalar::exp` in sixteen lanes, operation by operation.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
fn exp(x: __m512) -> __m512 {
    let not_too_low = _mm512_cmp_ps_mask::<_CMP_NLT_UQ>(x, _mm512_set1_ps(EXP_LOW));
    // min returns its second operand for NaN: x comes second, so that NaN goes through
    let clamped = _mm512_min_ps(_mm512_set1_ps(EXP_HIGH), x);
    let n = _mm512_mul_ps(clamped, _mm512_set1_ps(std::f32::consts::LOG2_E));
    let n = _mm512_roundscale_ps::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(n);
    let r = _mm512_fmadd_ps(n, _mm512_set1_ps(-LN2_HIGH), clamped);
    let r = _mm512_fmadd_ps(n, _mm512_set1_ps(-LN2_LOW), r);
    let mut tail = _mm512_setzero_ps();
    for c in EXP_SERIES {
        tail = _mm512_fmadd_ps(tail, r, _mm512_set1_ps(c));
    }
    let series = _mm512_add_ps(_mm512_fmadd_ps(_mm512_mul_ps(r, r), tail, r), _mm512_set1_ps(1.0));
    let exponent = _mm512_slli_epi32::<23>(_mm512_add_epi32(_mm512_cvtps_epi32(n), _mm512_set1_epi32(127)));
    _mm512_maskz_mul_ps(not_too_low, series, _mm512_castsi512_ps(exponent))
}

/// `Kernels::softmax_span`
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
pub fn softmax_span(scores: &mut [f32]) -> (f32, f32) {
    let n = scores.len();
    let mut best = _mm512_set1_ps(f32::NEG_INFINITY);
    for at in (0..n).step_by(LANES) {
        // SAFETY: the lanes that exist; max returns its second operand for NaN.
        unsafe {
            let mask = first(n - at);
            best = _mm512_mask_max_ps(best, mask, _mm512_maskz_loadu_ps(mask, scores.as_ptr().add(at)), best);
        }
    }
    let mut lanes = [0f32; LANES];
    // SAFETY: a store of sixteen floats.
    unsafe { _mm512_storeu_ps(lanes.as_mut_ptr(), best) };
    let max = lanes.iter().fold(f32::NEG_INFINITY, |max, &s| if s > max { s } else { max });
    let mut sums = _mm512_setzero_ps();
    for at in (0..n).step_by(LANES) {
        // SAFETY: the lanes that exist. The others add 0, which changes no sum of non-negative numbers.
        unsafe {
            let mask = first(n - at);
            let x = _mm512_maskz_loadu_ps(mask, scores.as_ptr().add(at));
            let p = _mm512_maskz_mov_ps(mask, exp(_mm512_sub_ps(x, _mm512_set1_ps(max))));
            _mm512_mask_storeu_ps(scores.as_mut_ptr().add(at), mask, p);
            sums = _mm512_add_ps(sums, p);
        }
    }
    let halves = add_eighths(sums, sums);
    let quarters = _mm512_add_ps(halves, _mm512_shuffle_f32x4::<0xb1>(halves, halves));
    let pairs = add_pairs(quarters, quarters);
    (max, _mm512_cvtss_f32(_mm512_add_ps(pairs, _mm512_movehdup_ps(pairs))))
}

/// `Kernels::silu_mul`
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
pub fn silu_mul(gate: &mut [f32], up: &[f32]) {
    assert_eq!(gate.len(), up.len(), "gate and up");
    for at in (0..gate.len()).step_by(LANES) {
        let mask = first(gate.len() - at);
        // SAFETY: the lanes that exist.
        unsafe {
            let (gate, up) = (gate.as_mut_ptr().add(at), up.as_ptr().add(at));
            let (g, u) = (_mm512_maskz_loadu_ps(mask, gate), _mm512_maskz_loadu_ps(mask, up));
            let minus_g = _mm512_xor_ps(g, _mm512_set1_ps(-0.0));
            let silu = _mm512_div_ps(g, _mm512_add_ps(_mm512_set1_ps(1.0), exp(minus_g)));
            _mm512_mask_storeu_ps(gate, mask, _mm512_mul_ps(silu, u));
        }
    }
}
