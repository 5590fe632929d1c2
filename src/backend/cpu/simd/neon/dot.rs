//! The one instruction that CPUs differ in: products of signed bytes, summed by fours into 32 bits.

use std::arch::aarch64::*;
use std::arch::asm;

/// A way to multiply bytes.
pub trait Dot {
    /// Lane i of `sums` + the products of bytes 4 i to 4 i + 3 of `w` and `x`.
    ///
    /// # Safety
    /// The CPU has the instruction.
    unsafe fn quads(sums: int32x4_t, w: int8x16_t, x: int8x16_t) -> int32x4_t;

    /// The same with bytes 4 `LANE` to 4 `LANE` + 3 of `x` in every lane.
    ///
    /// # Safety
    /// The CPU has the instruction.
    unsafe fn quads_by<const LANE: i32>(sums: int32x4_t, w: int8x16_t, x: int8x16_t) -> int32x4_t;
}

/// One instruction. Written as assembly because its intrinsic is not stable.
pub struct Sdot;

impl Dot for Sdot {
    #[inline]
    #[target_feature(enable = "neon")]
    unsafe fn quads(mut sums: int32x4_t, w: int8x16_t, x: int8x16_t) -> int32x4_t {
        // SAFETY: touches only its operands; the CPU has it by the caller's promise.
        unsafe {
            asm!(
                ".arch_extension dotprod",
                "sdot {sums:v}.4s, {w:v}.16b, {x:v}.16b",
                sums = inout(vreg) sums, w = in(vreg) w, x = in(vreg) x,
                options(pure, nomem, nostack, preserves_flags)
            );
        }
        sums
    }

    #[inline]
    #[target_feature(enable = "neon")]
    unsafe fn quads_by<const LANE: i32>(mut sums: int32x4_t, w: int8x16_t, x: int8x16_t) -> int32x4_t {
        // SAFETY: as above.
        unsafe {
            asm!(
                ".arch_extension dotprod",
                "sdot {sums:v}.4s, {w:v}.16b, {x:v}.4b[{lane}]",
                sums = inout(vreg) sums, w = in(vreg) w, x = in(vreg) x, lane = const LANE,
                options(pure, nomem, nostack, preserves_flags)
            );
        }
        sums
    }
}

/// Six instructions of every AArch64 CPU: products in 16 bits, sums of pairs in 32.
pub struct Widening;

impl Dot for Widening {
    #[inline]
    #[target_feature(enable = "neon")]
    unsafe fn quads(sums: int32x4_t, w: int8x16_t, x: int8x16_t) -> int32x4_t {
        let low = vpaddlq_s16(vmull_s8(vget_low_s8(w), vget_low_s8(x)));
        let high = vpaddlq_s16(vmull_high_s8(w, x));
        vaddq_s32(sums, vpaddq_s32(low, high))
    }

    #[inline]
    #[target_feature(enable = "neon")]
    unsafe fn quads_by<const LANE: i32>(sums: int32x4_t, w: int8x16_t, x: int8x16_t) -> int32x4_t {
        let quad = vreinterpretq_s8_s32(vdupq_laneq_s32::<LANE>(vreinterpretq_s32_s8(x)));
        // SAFETY: instructions of every AArch64 CPU.
        unsafe { Self::quads(sums, w, quad) }
    }
}
