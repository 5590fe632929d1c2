//! Types of 32 elements a block: four blocks make a unit, whose scales come out of one or two loads a row.

#![expect(
    clippy::needless_range_loop,
    reason = "constant ranges unroll, and iterators over several arrays do not read better"
)]

use std::arch::x86_64::*;

use super::super::super::avx2::blocks::{Iq4Nl, Mxfp4, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0};
use super::{Column, LaneScales, Wide, halfs, iq4_values, load4, looked_up, nibbles, table, transpose, words};
use crate::quant::MXFP4_VALUES;

/// Blocks of a unit.
const BLOCKS: usize = 4;

/// Index that brings entry 0 of four blocks of `BYTES` together, out of 64 bytes at the unit's start and 64 at `second`,
/// in entries of `size` bytes.
const fn entry<const BYTES: usize>(block: usize, size: usize) -> usize {
    let at = block * BYTES;
    if at + size <= 64 { at / size } else { (at - second::<BYTES>() + 64) / size }
}

/// Where the second load starts: it ends within the unit and reaches back to what the first one missed.
const fn second<const BYTES: usize>() -> usize {
    let last = BLOCKS * BYTES - 64;
    if last < 64 { last } else { 64 }
}

/// Words `index` of 64 bytes where `mask` is set, `otherwise` elsewhere: one operation by hand, for which the compiler takes
/// the two-source shuffle of three.
///
/// # Safety
/// 64 bytes can be read at `from`.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
unsafe fn pick_words(otherwise: __m512i, mask: __mmask32, index: __m512i, from: *const u8) -> __m512i {
    let mut words = otherwise;
    // SAFETY: reads the caller's bytes, writes one register.
    unsafe {
        std::arch::asm!(
            "vpermw {words}{{{mask}}}, {index}, zmmword ptr [{from}]",
            words = inout(zmm_reg) words,
            mask = in(kreg) mask,
            index = in(zmm_reg) index,
            from = in(reg) from,
            options(pure, readonly, nostack, preserves_flags)
        );
    }
    words
}

/// The f16 at the start of four blocks of sixteen rows: a shuffle per row puts its four words into one qword.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
unsafe fn scales4<const BYTES: usize>(column: Column) -> [__m512; BLOCKS] {
    const {
        assert!(BYTES.is_multiple_of(2) && BLOCKS * BYTES >= 64);
    }
    let index = _mm512_set1_epi64(
        const {
            let at = [entry::<BYTES>(0, 2), entry::<BYTES>(1, 2), entry::<BYTES>(2, 2), entry::<BYTES>(3, 2)];
            (at[0] | at[1] << 16 | at[2] << 32 | at[3] << 48) as i64
        },
    );
    let (mut low, mut high) = (_mm512_setzero_si512(), _mm512_setzero_si512());
    for r in 0..8 {
        let own = 15 << (4 * r);
        // SAFETY: both loads end within the unit.
        unsafe {
            let (a, b) = (column.first.add(r * column.stride), column.first.add((r + 8) * column.stride));
            if 3 * BYTES + 2 <= 64 {
                low = pick_words(low, own, index, a);
                high = pick_words(high, own, index, b);
            } else {
                let pick = |row: *const u8| {
                    let (first, second) = (row.cast(), row.add(const { second::<BYTES>() }).cast());
                    _mm512_maskz_permutex2var_epi16(own, _mm512_loadu_si512(first), index, _mm512_loadu_si512(second))
                };
                low = _mm512_or_si512(low, pick(a));
                high = _mm512_or_si512(high, pick(b));
            }
        }
    }
    // word i of the four of each row, rows in order
    let first: [u16; 32] = const {
        let mut index = [0; 32];
        let mut i = 0;
        while i < 32 {
            let (row, word) = (i % 16, i / 16);
            index[i] = ((row / 8) * 32 + (row % 8) * 4 + word) as u16;
            i += 1;
        }
        index
    };
    // SAFETY: 64 bytes of the index.
    let first = unsafe { _mm512_loadu_si512(first.as_ptr().cast()) };
    let second = _mm512_add_epi16(first, _mm512_set1_epi16(2));
    let (a, b) = (_mm512_permutex2var_epi16(low, first, high), _mm512_permutex2var_epi16(low, second, high));
    [
        _mm512_cvtph_ps(_mm512_castsi512_si256(a)),
        _mm512_cvtph_ps(_mm512_extracti64x4_epi64::<1>(a)),
        _mm512_cvtph_ps(_mm512_castsi512_si256(b)),
        _mm512_cvtph_ps(_mm512_extracti64x4_epi64::<1>(b)),
    ]
}

/// The same for two f16 at the start of each block, as one dword a row.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
unsafe fn scale_pairs4<const BYTES: usize>(column: Column) -> [__m512i; BLOCKS] {
    const {
        assert!(BYTES.is_multiple_of(4) && BLOCKS * BYTES >= 64);
    }
    let index = _mm512_broadcast_i32x4(_mm_setr_epi32(
        const { entry::<BYTES>(0, 4) as i32 },
        const { entry::<BYTES>(1, 4) as i32 },
        const { entry::<BYTES>(2, 4) as i32 },
        const { entry::<BYTES>(3, 4) as i32 },
    ));
    let mut rows = [_mm512_setzero_si512(); 4];
    for r in 0..4 {
        for lane in 0..4 {
            let own = 15 << (4 * lane);
            // SAFETY: both loads end within the unit.
            unsafe {
                let row = column.first.add((4 * lane + r) * column.stride);
                let a = _mm512_loadu_si512(row.cast());
                rows[r] = if 3 * BYTES + 4 <= 64 {
                    _mm512_mask_permutexvar_epi32(rows[r], own, index, a)
                } else {
                    let b = _mm512_loadu_si512(row.add(const { second::<BYTES>() }).cast());
                    _mm512_or_si512(rows[r], _mm512_maskz_permutex2var_epi32(own, a, index, b))
                };
            }
        }
    }
    transpose(rows)
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
fn scale_only(w_scale: __m512) -> LaneScales {
    let none = _mm512_setzero_ps();
    LaneScales { w_scale, w_min: none, scale: [none; 2], min: [none; 2] }
}

/// Of a dword: d in the low half, m in the high one.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
fn scale_and_min(pair: __m512i) -> LaneScales {
    let none = _mm512_setzero_ps();
    LaneScales { w_scale: halfs(pair), w_min: halfs(_mm512_srli_epi32::<16>(pair)), scale: [none; 2], min: [none; 2] }
}

/// Nibbles with a fifth bit: bit i of the u32 at `high_at` of a row belongs to its element i.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
unsafe fn five_bits(column: Column, r: usize, high_at: usize, at: usize) -> [__m512i; 2] {
    // SAFETY: the caller's column holds these bytes.
    let row = |i: usize| unsafe {
        u64::from(column.first.add((r + 4 * i) * column.stride + high_at).cast::<u32>().read_unaligned())
    };
    let (a, b, c, d) = (row(0), row(1), row(2), row(3));
    let half = |shift: u32| {
        let pick = |v: u64| v >> shift & 0xffff;
        pick(a) | pick(b) << 16 | pick(c) << 32 | pick(d) << 48
    };
    // SAFETY: as above.
    let [low, high] = unsafe { nibbles(column, r, at) };
    let sixteen = _mm512_set1_epi8(16);
    [_mm512_mask_add_epi8(low, half(0), low, sixteen), _mm512_mask_add_epi8(high, half(16), high, sixteen)]
}

/// `$at` is where block `J` of the unit starts.
macro_rules! legacy {
    ($type:ident, $head:ty = $heads:ident, $scales:ident, |$column:ident, $r:ident, $at:ident| $quants:expr) => {
        impl Wide for $type {
            const UNIT: usize = BLOCKS;
            type Head = [$head; BLOCKS];
            #[inline]
            #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
            unsafe fn wide_quants<const J: usize>($column: Column, $r: usize) -> [__m512i; 2] {
                let $at = J * <$type>::BYTES;
                // SAFETY: the caller's column.
                unsafe { $quants }
            }
            #[inline]
            #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
            unsafe fn head(column: Column) -> Self::Head {
                // SAFETY: the caller's column.
                unsafe { $heads::<{ <$type>::BYTES }>(column) }
            }
            #[inline]
            #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
            unsafe fn lane_scales<const J: usize>(head: &Self::Head) -> LaneScales {
                $scales(head[J])
            }
        }
    };
}

use super::Blocks;

legacy!(Q4_0, __m512 = scales4, scale_only, |column, r, at| nibbles(column, r, at + 2));
legacy!(Q4_1, __m512i = scale_pairs4, scale_and_min, |column, r, at| nibbles(column, r, at + 4));
legacy!(Q5_0, __m512 = scales4, scale_only, |column, r, at| five_bits(column, r, at + 2, at + 6));
legacy!(Q5_1, __m512i = scale_pairs4, scale_and_min, |column, r, at| five_bits(column, r, at + 4, at + 8));
legacy!(Q8_0, __m512 = scales4, scale_only, |column, r, at| {
    let flip = _mm512_set1_epi8(-128);
    [_mm512_xor_si512(load4(column, r, at + 2), flip), _mm512_xor_si512(load4(column, r, at + 18), flip)]
});
legacy!(Iq4Nl, __m512 = scales4, scale_only, |column, r, at| iq4_values(column, r, at + 2));
legacy!(Mxfp4, __m512 = exponents4, scale_only, |column, r, at| {
    looked_up(column, r, at + 1, table::<12>(&MXFP4_VALUES))
});

/// The scales of four MXFP4 blocks: 2^(e - 128), a subnormal for e below 2 (`quant::e8m0_half` in lanes).
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
unsafe fn exponents4<const BYTES: usize>(column: Column) -> [__m512; BLOCKS] {
    let mut scales = [_mm512_setzero_ps(); BLOCKS];
    for (block, scale) in scales.iter_mut().enumerate() {
        // SAFETY: the caller's column.
        let e = _mm512_cvtepu16_epi32(unsafe { words(column, block * BYTES) });
        let e = _mm512_and_si512(e, _mm512_set1_epi32(255));
        let normal = _mm512_slli_epi32::<23>(_mm512_sub_epi32(e, _mm512_set1_epi32(1)));
        let subnormal = _mm512_sllv_epi32(_mm512_set1_epi32(0x0020_0000), e);
        let is_small = _mm512_cmplt_epi32_mask(e, _mm512_set1_epi32(2));
        *scale = _mm512_castsi512_ps(_mm512_mask_mov_epi32(normal, is_small, subnormal));
    }
    scales
}
