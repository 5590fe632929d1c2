//! Stored rows of the KV cache, numbers of 16 bits, and asking for memory ahead.

use std::arch::aarch64::*;
use std::arch::asm;

use super::float::{largest, load16, max_of, round_to_levels};
use super::scalar;
use crate::backend::cpu::simd::LANES;
use crate::kv::layout::KvType;
use crate::kv::rows::{self, int8_scale};
use crate::quant::activation::Precision;

/// Four f16 -> f32. Of every AArch64 CPU; its intrinsic wants a type that is not stable.
#[inline]
#[target_feature(enable = "neon")]
fn widen_four(halfs: uint16x4_t) -> float32x4_t {
    let wide;
    // SAFETY: touches only its operands.
    unsafe {
        asm!("fcvtl {wide:v}.4s, {halfs:v}.4h", wide = lateout(vreg) wide, halfs = in(vreg) halfs,
            options(pure, nomem, nostack, preserves_flags));
    }
    wide
}

/// Four f32 -> f16, rounded to nearest even.
#[inline]
#[target_feature(enable = "neon")]
fn narrow_four(floats: float32x4_t) -> uint16x4_t {
    let halfs;
    // SAFETY: touches only its operands.
    unsafe {
        asm!("fcvtn {halfs:v}.4h, {floats:v}.4s", halfs = lateout(vreg) halfs, floats = in(vreg) floats,
            options(pure, nomem, nostack, preserves_flags));
    }
    halfs
}

/// Eight f16 -> f32.
#[inline]
#[target_feature(enable = "neon")]
pub fn widen_halfs(halfs: &[u16; 8]) -> [float32x4_t; 2] {
    // SAFETY: a load of eight numbers.
    let halfs = unsafe { vld1q_u16(halfs.as_ptr()) };
    [widen_four(vget_low_u16(halfs)), widen_four(vget_high_u16(halfs))]
}

/// Asks for the cache line at an address, which need not exist, into the L2 cache.
#[inline]
pub fn prefetch_line(at: *const u8) {
    // SAFETY: a hint: it changes no memory and never faults.
    unsafe { asm!("prfm pldl2keep, [{at}]", at = in(reg) at, options(nostack, preserves_flags, readonly)) };
}

pub fn prefetch(bytes: &[u8]) {
    bytes.chunks(64).for_each(|line| prefetch_line(line.as_ptr()));
}

#[target_feature(enable = "neon")]
pub fn encode(kv_type: KvType, row: &[f32], stored: &mut [u8], scale: &mut [u8]) {
    match kv_type {
        KvType::F16 if row.len().is_multiple_of(4) => {
            assert_eq!(stored.len(), 2 * row.len(), "stored row");
            for (x, bytes) in row.as_chunks::<4>().0.iter().zip(stored.as_chunks_mut::<8>().0) {
                // SAFETY: four floats in, eight bytes out.
                unsafe { vst1_u8(bytes.as_mut_ptr(), vreinterpret_u8_u16(narrow_four(vld1q_f32(x.as_ptr())))) };
            }
        }
        KvType::Int8 if row.len().is_multiple_of(LANES) => {
            assert_eq!((stored.len(), scale.len()), (row.len(), 2), "stored row");
            let (bytes, inv) = int8_scale(max_magnitude(row));
            scale.copy_from_slice(&bytes);
            for (x, bytes) in row.as_chunks::<LANES>().0.iter().zip(stored.as_chunks_mut::<LANES>().0) {
                // SAFETY: sixteen bytes out.
                unsafe { vst1q_u8(bytes.as_mut_ptr(), vreinterpretq_u8_s8(round_to_levels(load16(x), inv))) };
            }
        }
        _ => rows::encode(kv_type, row, stored, scale),
    }
}

#[target_feature(enable = "neon")]
pub fn widen(kv_type: KvType, stored: &[u8], values: &mut [f32]) {
    if kv_type == KvType::F32 || !values.len().is_multiple_of(8) {
        return rows::widen(kv_type, stored, values);
    }
    assert_eq!(stored.len(), kv_type.row_bytes(values.len()), "stored rows");
    for (i, x) in values.as_chunks_mut::<8>().0.iter_mut().enumerate() {
        // SAFETY: sixteen or eight bytes in, eight floats out.
        unsafe {
            let wide = if kv_type == KvType::F16 {
                let halfs = vreinterpretq_u16_u8(vld1q_u8(stored.as_ptr().add(16 * i)));
                [widen_four(vget_low_u16(halfs)), widen_four(vget_high_u16(halfs))]
            } else {
                let words = vmovl_s8(vld1_s8(stored.as_ptr().cast::<i8>().add(8 * i)));
                [vmovl_s16(vget_low_s16(words)), vmovl_high_s16(words)].map(|v| vcvtq_f32_s32(v))
            };
            vst1q_f32(x.as_mut_ptr(), wide[0]);
            vst1q_f32(x.as_mut_ptr().add(4), wide[1]);
        }
    }
}

/// p[i] *= scales[i]
#[target_feature(enable = "neon")]
pub fn scale(p: &mut [f32], scales: &[u8]) {
    for (p, scales) in p.chunks_mut(4).zip(scales.chunks(8)) {
        for (p, scale) in p.iter_mut().zip(four_scales(scales)) {
            *p *= scale;
        }
    }
}

/// Up to four f16 from bytes, filled up with zeros.
#[inline]
#[target_feature(enable = "neon")]
pub fn four_scales(scales: &[u8]) -> [f32; 4] {
    let mut bytes = [0u8; 8];
    let n = scales.len().min(8);
    bytes[..n].copy_from_slice(&scales[..n]);
    let mut lanes = [0f32; 4];
    // SAFETY: eight bytes in, four floats out.
    unsafe { vst1q_f32(lanes.as_mut_ptr(), widen_four(vreinterpret_u16_u8(vld1_u8(bytes.as_ptr())))) };
    lanes
}

/// The largest magnitude of a row of whole sixteens.
#[inline]
#[target_feature(enable = "neon")]
fn max_magnitude(row: &[f32]) -> f32 {
    let max = row.as_chunks::<LANES>().0.iter().fold(vdupq_n_u32(0), |max, x| vmaxq_u32(max, max_of(load16(x))));
    largest(max)
}

#[target_feature(enable = "neon")]
pub fn quantize_head(head: &[f32], q: &mut [i8]) -> f32 {
    if !head.len().is_multiple_of(LANES) {
        return (scalar::KERNELS.quantize_head)(head, q);
    }
    assert_eq!(head.len(), q.len(), "a head");
    let (scale, inv) = Precision::Int8.scale_of(max_magnitude(head));
    for (x, q) in head.as_chunks::<LANES>().0.iter().zip(q.as_chunks_mut::<LANES>().0) {
        // SAFETY: sixteen bytes out.
        unsafe { vst1q_s8(q.as_mut_ptr(), round_to_levels(load16(x), inv)) };
    }
    scale
}
