//! Stored rows of the KV cache: codecs, and attention on int8 rows as they lie in the pages.
//!
//! Scores of eight keys are formed at once: per key and 32 elements one multiply-add of bytes and one of words, then a
//! tree of seven adds brings eight sums into the lanes. Bytes per key and head: head_dim + 2.

use std::arch::x86_64::*;

use super::float::{max_of, max_of_lanes, round_to_levels};
use super::matmul::{into_lanes, products};
use super::scalar;
use crate::backend::cpu::simd::{Queries, SPAN_TOKENS};
use crate::kv::layout::KvType;
use crate::kv::rows::{self, int8_scale};
use crate::quant::activation::Precision;

/// Elements per step; heads of other lengths take the plain path.
const STEP: usize = 32;
/// Keys whose scores are formed together.
const KEYS: usize = 8;

#[target_feature(enable = "avx2,fma,f16c")]
pub fn encode(kv_type: KvType, row: &[f32], stored: &mut [u8], scale: &mut [u8]) {
    match kv_type {
        KvType::F16 if row.len().is_multiple_of(8) => {
            assert_eq!(stored.len(), 2 * row.len(), "stored row");
            for (x, bytes) in row.as_chunks::<8>().0.iter().zip(stored.as_chunks_mut::<16>().0) {
                // SAFETY: eight floats in, sixteen bytes out.
                unsafe {
                    let half = _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(_mm256_loadu_ps(x.as_ptr()));
                    _mm_storeu_si128(bytes.as_mut_ptr().cast(), half);
                }
            }
        }
        KvType::Int8 if row.len().is_multiple_of(STEP) => {
            assert_eq!((stored.len(), scale.len()), (row.len(), 2), "stored row");
            let (bytes, inv) = int8_scale(max_magnitude(row));
            scale.copy_from_slice(&bytes);
            for (x, bytes) in row.as_chunks::<STEP>().0.iter().zip(stored.as_chunks_mut::<STEP>().0) {
                // SAFETY: 32 bytes out.
                unsafe { _mm256_storeu_si256(bytes.as_mut_ptr().cast(), round_to_levels(load32(x), inv)) };
            }
        }
        _ => rows::encode(kv_type, row, stored, scale),
    }
}

#[target_feature(enable = "avx2,fma,f16c")]
pub fn widen(kv_type: KvType, stored: &[u8], values: &mut [f32]) {
    if kv_type == KvType::F32 || !values.len().is_multiple_of(8) {
        return rows::widen(kv_type, stored, values);
    }
    assert_eq!(stored.len(), kv_type.row_bytes(values.len()), "stored rows");
    for (i, x) in values.as_chunks_mut::<8>().0.iter_mut().enumerate() {
        // SAFETY: sixteen or eight bytes in, eight floats out.
        unsafe {
            let wide = if kv_type == KvType::F16 {
                _mm256_cvtph_ps(_mm_loadu_si128(stored.as_ptr().add(16 * i).cast()))
            } else {
                _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(stored.as_ptr().add(8 * i).cast())))
            };
            _mm256_storeu_ps(x.as_mut_ptr(), wide);
        }
    }
}

/// p[i] *= scales[i]
#[target_feature(enable = "avx2,fma,f16c")]
pub fn scale(p: &mut [f32], scales: &[u8]) {
    for (p, scales) in p.chunks_mut(8).zip(scales.chunks(16)) {
        let mut bytes = [0u8; 16];
        bytes[..2 * p.len()].copy_from_slice(&scales[..2 * p.len()]);
        let mut lanes = [0f32; 8];
        // SAFETY: sixteen bytes in, eight floats out.
        unsafe { _mm256_storeu_ps(lanes.as_mut_ptr(), _mm256_cvtph_ps(_mm_loadu_si128(bytes.as_ptr().cast()))) };
        p.iter_mut().zip(lanes).for_each(|(p, scale)| *p *= scale);
    }
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn load32(x: &[f32; STEP]) -> [__m256; 4] {
    // SAFETY: four loads of eight floats from 32.
    std::array::from_fn(|i| unsafe { _mm256_loadu_ps(x.as_ptr().add(8 * i)) })
}

/// The largest magnitude of a row of whole steps.
#[target_feature(enable = "avx2,fma,f16c")]
fn max_magnitude(row: &[f32]) -> f32 {
    let mut max = [_mm256_setzero_si256(); 2];
    for x in row.as_chunks::<STEP>().0 {
        let v = load32(x);
        max[0] = _mm256_max_epi32(max[0], max_of_lanes(v[0], v[1]));
        max[1] = _mm256_max_epi32(max[1], max_of_lanes(v[2], v[3]));
    }
    max_of(max[0], max[1])
}

#[target_feature(enable = "avx2,fma,f16c")]
pub fn quantize_head(head: &[f32], q: &mut [i8]) -> f32 {
    if !head.len().is_multiple_of(STEP) {
        return (scalar::KERNELS.quantize_head)(head, q);
    }
    assert_eq!(head.len(), q.len(), "a head");
    let (scale, inv) = Precision::Int8.scale_of(max_magnitude(head));
    for (x, q) in head.as_chunks::<STEP>().0.iter().zip(q.as_chunks_mut::<STEP>().0) {
        // SAFETY: 32 bytes out.
        unsafe { _mm256_storeu_si256(q.as_mut_ptr().cast(), round_to_levels(load32(x), inv)) };
    }
    scale
}

#[target_feature(enable = "avx2,fma,f16c")]
pub fn scores(queries: &Queries<i8>, q_scales: &[f32], k_rows: &[u8], k_scales: &[u8], n: usize, out: &mut [f32]) {
    if !queries.head_dim.is_multiple_of(STEP) {
        return (scalar::KERNELS.scores_int8)(queries, q_scales, k_rows, k_scales, n, out);
    }
    for ((query, q_scale), out) in queries.each().zip(q_scales).zip(out.chunks_mut(SPAN_TOKENS)) {
        query_scores(query, *q_scale, k_rows, k_scales, &mut out[..n]);
    }
}

#[target_feature(enable = "avx2,fma,f16c")]
fn query_scores(q: &[i8], q_scale: f32, k_rows: &[u8], k_scales: &[u8], out: &mut [f32]) {
    let (head_dim, n) = (q.len(), out.len());
    assert!(k_rows.len() >= n * head_dim && k_scales.len() >= 2 * n, "a row and a scale per score");
    for (i, out) in out.chunks_mut(KEYS).enumerate() {
        // past the last key it stands in again; its lanes are not stored
        let key = |r: usize| i * KEYS + r.min(out.len() - 1);
        let mut sums = [_mm256_setzero_si256(); KEYS];
        for (at, q) in q.as_chunks::<STEP>().0.iter().enumerate() {
            // SAFETY: 32 bytes of q, and of the row of an existing key.
            unsafe {
                let q = _mm256_loadu_si256(q.as_ptr().cast());
                for (r, sum) in sums.iter_mut().enumerate() {
                    let k = _mm256_loadu_si256(k_rows.as_ptr().add(key(r) * head_dim + at * STEP).cast());
                    *sum = _mm256_add_epi32(*sum, products(k, q));
                }
            }
        }
        let halves = into_lanes(sums);
        let dots = _mm256_cvtepi32_ps(_mm256_add_epi32(halves[0], halves[1]));
        let mut scales = [0u8; 2 * KEYS];
        scales[..2 * out.len()].copy_from_slice(&k_scales[2 * i * KEYS..2 * (i * KEYS + out.len())]);
        let mut lanes = [0f32; KEYS];
        // SAFETY: sixteen bytes in, eight floats out.
        unsafe {
            let k_scale = _mm256_cvtph_ps(_mm_loadu_si128(scales.as_ptr().cast()));
            let scores = _mm256_mul_ps(dots, _mm256_mul_ps(_mm256_set1_ps(q_scale), k_scale));
            _mm256_storeu_ps(lanes.as_mut_ptr(), scores);
        }
        out.copy_from_slice(&lanes[..out.len()]);
    }
}
