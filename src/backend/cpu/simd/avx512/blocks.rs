//! How each quantized type is read sixteen rows at a time: unsigned bytes, and scales in lanes.
//!
//! A register holds sixteen bytes of each of four rows (r, r + 4, r + 8, r + 12), one row per 128-bit lane; four of them
//! make a panel. Signed values come with a bias that makes them unsigned, as VNNI multiplies unsigned by signed.

use std::arch::x86_64::*;

use super::super::avx2::blocks::{Blocks, Iq4Nl, Iq4Xs, Mxfp4, Q2K, Q3K, Q4_0, Q4_1, Q4K, Q5_0, Q5_1, Q5K, Q6K, Q8_0};
use crate::quant::{DType, Form, IQ4_VALUES, MXFP4_VALUES};

/// Rows in the lanes.
pub const ROWS: usize = 16;

/// The same block column of sixteen rows: `block` of row 0, the others at multiples of `stride`.
#[derive(Clone, Copy)]
pub struct Column {
    pub block: *const u8,
    pub stride: usize,
}

/// What a block column holds beside its elements, sixteen rows in the lanes.
#[derive(Clone, Copy)]
pub struct Head {
    pub d: __m512,
    pub m: __m512,
    /// Integer scales, four bytes a lane, as the type packs them.
    ints: [__m512i; 4],
}

/// Scales of one group of sixteen rows, by `Form`.
#[derive(Clone, Copy)]
pub struct LaneScales {
    pub w_scale: __m512,
    /// Times x_sum, added.
    pub w_min: __m512,
    pub scale: [__m512i; 2],
    pub min: [__m512i; 2],
}

/// A quantized type as sixteen rows. All functions read within the sixteen blocks of the column.
pub trait Wide: Blocks {
    /// Added to the elements: 0 for types with a minimum, whose elements are unsigned.
    const BIAS: i32;

    /// Elements 0..16 and 16..32 of group `J` of rows `r`, r + 4, r + 8, r + 12, plus `BIAS`.
    ///
    /// # Safety
    /// `column` is a block column of sixteen rows and `r` below 4; the CPU has AVX-512.
    unsafe fn wide_quants<const J: usize>(column: Column, r: usize) -> [__m512i; 2];

    /// # Safety
    /// `column` is a block column of sixteen rows; the CPU has AVX-512.
    unsafe fn head(column: Column) -> Head;

    /// # Safety
    /// The CPU has AVX-512.
    unsafe fn wide_scales<const J: usize>(head: &Head) -> LaneScales {
        let unused = [head.ints[0]; 2];
        LaneScales { w_scale: head.d, w_min: head.m, scale: unused, min: unused }
    }
}

/// Sixteen bytes at `at` of the blocks of four rows.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
unsafe fn load4(column: Column, r: usize, at: usize) -> __m512i {
    // SAFETY: the caller's blocks hold these bytes.
    let row = |i: usize| unsafe { _mm_loadu_si128(column.block.add((r + 4 * i) * column.stride + at).cast()) };
    let low = _mm256_inserti128_si256::<1>(_mm256_castsi128_si256(row(0)), row(1));
    let high = _mm256_inserti128_si256::<1>(_mm256_castsi128_si256(row(2)), row(3));
    _mm512_inserti64x4::<1>(_mm512_castsi256_si512(low), high)
}

/// 4 x 4 transpose of dwords in every 128-bit lane.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
pub fn transpose(v: [__m512i; 4]) -> [__m512i; 4] {
    let (a, b) = (_mm512_unpacklo_epi32(v[0], v[1]), _mm512_unpackhi_epi32(v[0], v[1]));
    let (c, d) = (_mm512_unpacklo_epi32(v[2], v[3]), _mm512_unpackhi_epi32(v[2], v[3]));
    [_mm512_unpacklo_epi64(a, c), _mm512_unpackhi_epi64(a, c), _mm512_unpacklo_epi64(b, d), _mm512_unpackhi_epi64(b, d)]
}

/// Sixteen bytes at `at` of all rows, as four registers of one dword a row.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
unsafe fn dwords(column: Column, at: usize) -> [__m512i; 4] {
    // SAFETY: the caller's blocks hold these bytes.
    unsafe { transpose([load4(column, 0, at), load4(column, 1, at), load4(column, 2, at), load4(column, 3, at)]) }
}

/// The u16 at `at` of all rows.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
unsafe fn words(column: Column, at: usize) -> __m256i {
    let mut words = [0u16; ROWS];
    for (r, word) in words.iter_mut().enumerate() {
        // SAFETY: the caller's blocks hold these bytes.
        *word = unsafe { column.block.add(r * column.stride + at).cast::<u16>().read_unaligned() };
    }
    // SAFETY: 32 bytes of an array of sixteen words.
    unsafe { _mm256_loadu_si256(words.as_ptr().cast()) }
}

/// The f16 in the low half of every dword.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
fn halfs(v: __m512i) -> __m512 {
    _mm512_cvtph_ps(_mm512_cvtepi32_epi16(v))
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
fn minus(v: __m512) -> __m512 {
    _mm512_xor_ps(v, _mm512_set1_ps(-0.0))
}

/// (byte >> SHIFT) & mask in every byte.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
fn bits<const SHIFT: u32>(v: __m512i, mask: i8) -> __m512i {
    let v = if SHIFT == 0 { v } else { _mm512_srli_epi16::<SHIFT>(v) };
    _mm512_and_si512(v, _mm512_set1_epi8(mask))
}

/// Byte `BYTE` of every dword, unsigned.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
fn byte<const BYTE: usize>(v: __m512i) -> __m512i {
    let shifted = match BYTE {
        0 => v,
        1 => _mm512_srli_epi32::<8>(v),
        2 => _mm512_srli_epi32::<16>(v),
        _ => _mm512_srli_epi32::<24>(v),
    };
    _mm512_and_si512(shifted, _mm512_set1_epi32(255))
}

/// Both nibbles of sixteen bytes: elements 0..16 are the low ones, 16..32 the high ones.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
unsafe fn nibbles(column: Column, r: usize, at: usize) -> [__m512i; 2] {
    // SAFETY: the caller's blocks hold these bytes.
    let v = unsafe { load4(column, r, at) };
    [bits::<0>(v, 15), bits::<4>(v, 15)]
}

/// Nibbles looked up in a table of signed values, plus `bias`.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
unsafe fn looked_up(column: Column, r: usize, at: usize, values: &[i8; 16], bias: i32) -> [__m512i; 2] {
    let biased = values.map(|v| (i32::from(v) + bias) as u8);
    // SAFETY: sixteen bytes of the table; the caller's blocks.
    let (table, [low, high]) = unsafe { (_mm_loadu_si128(biased.as_ptr().cast()), nibbles(column, r, at)) };
    let table = _mm512_broadcast_i32x4(table);
    [_mm512_shuffle_epi8(table, low), _mm512_shuffle_epi8(table, high)]
}

/// Nibbles with a fifth bit: bit i of the u32 at `at` of a row belongs to its element i.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
unsafe fn five_bits(column: Column, r: usize, high_at: usize, at: usize) -> [__m512i; 2] {
    // SAFETY: the caller's blocks hold these bytes.
    let row = |i: usize| unsafe {
        u64::from(column.block.add((r + 4 * i) * column.stride + high_at).cast::<u32>().read_unaligned())
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

/// Head of types with one f16 scale at 0 (and one f16 minimum behind it).
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
unsafe fn legacy_head<B: Blocks>(column: Column) -> Head {
    // SAFETY: the caller's blocks hold these bytes.
    unsafe {
        let d = _mm512_cvtph_ps(words(column, B::D));
        let has_min = matches!(B::FORM, Form::ScaleMin);
        let m = if has_min { _mm512_cvtph_ps(words(column, B::M)) } else { d };
        Head { d, m, ints: [_mm512_setzero_si512(); 4] }
    }
}

macro_rules! legacy {
    ($type:ident, $bias:expr, |$column:ident, $r:ident| $quants:expr) => {
        impl Wide for $type {
            const BIAS: i32 = $bias;
            #[inline]
            #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
            unsafe fn wide_quants<const J: usize>($column: Column, $r: usize) -> [__m512i; 2] {
                // SAFETY: the caller's blocks.
                unsafe { $quants }
            }
            #[inline]
            #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
            unsafe fn head(column: Column) -> Head {
                // SAFETY: the caller's blocks.
                unsafe { legacy_head::<$type>(column) }
            }
        }
    };
}

legacy!(Q4_0, 8, |column, r| nibbles(column, r, 2));
legacy!(Q4_1, 0, |column, r| nibbles(column, r, 4));
legacy!(Q5_0, 16, |column, r| five_bits(column, r, 2, 6));
legacy!(Q5_1, 0, |column, r| five_bits(column, r, 4, 8));
legacy!(Q8_0, 128, |column, r| {
    let flip = _mm512_set1_epi8(-128);
    [_mm512_xor_si512(load4(column, r, 2), flip), _mm512_xor_si512(load4(column, r, 18), flip)]
});
legacy!(Iq4Nl, 128, |column, r| looked_up(column, r, 2, &IQ4_VALUES, 128));

impl Wide for Mxfp4 {
    const BIAS: i32 = 12;
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
    unsafe fn wide_quants<const J: usize>(column: Column, r: usize) -> [__m512i; 2] {
        // SAFETY: the caller's blocks.
        unsafe { looked_up(column, r, 1, &MXFP4_VALUES, 12) }
    }
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
    unsafe fn head(column: Column) -> Head {
        // SAFETY: the caller's blocks.
        unsafe {
            let e = _mm512_and_si512(_mm512_cvtepu16_epi32(words(column, 0)), _mm512_set1_epi32(255));
            // 2^(e - 128), for e below 2 a subnormal: `quant::e8m0_half` in lanes
            let normal = _mm512_slli_epi32::<23>(_mm512_sub_epi32(e, _mm512_set1_epi32(1)));
            let subnormal = _mm512_sllv_epi32(_mm512_set1_epi32(0x0020_0000), e);
            let is_small = _mm512_cmplt_epi32_mask(e, _mm512_set1_epi32(2));
            let d = _mm512_castsi512_ps(_mm512_mask_mov_epi32(normal, is_small, subnormal));
            Head { d, m: d, ints: [_mm512_setzero_si512(); 4] }
        }
    }
}

/// d * scale and -(dmin * min): exact products.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
fn scaled(head: &Head, scale: __m512i, min: __m512i) -> LaneScales {
    LaneScales {
        w_scale: _mm512_mul_ps(head.d, _mm512_cvtepi32_ps(scale)),
        w_min: minus(_mm512_mul_ps(head.m, _mm512_cvtepi32_ps(min))),
        scale: [scale; 2],
        min: [min; 2],
    }
}

/// Head of Q4_K and Q5_K: d, dmin, then scales 0..4, 4..8, minima 0..4, 4..8 unpacked to bytes.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
unsafe fn k_head(column: Column) -> Head {
    // SAFETY: the caller's blocks start with sixteen bytes of head.
    let [d, low_scale, low_min, mixed] = unsafe { dwords(column, 0) };
    let and = |v: __m512i, mask: i32| _mm512_and_si512(v, _mm512_set1_epi32(mask));
    let top = |v: __m512i| and(_mm512_srli_epi32::<2>(v), 0x3030_3030);
    Head {
        d: halfs(d),
        m: halfs(_mm512_srli_epi32::<16>(d)),
        ints: [
            and(low_scale, 0x3f3f_3f3f),
            _mm512_or_si512(and(mixed, 0x0f0f_0f0f), top(low_scale)),
            and(low_min, 0x3f3f_3f3f),
            _mm512_or_si512(and(_mm512_srli_epi32::<4>(mixed), 0x0f0f_0f0f), top(low_min)),
        ],
    }
}

/// Scale and minimum of group `J` of Q4_K and Q5_K.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
fn k_scales<const J: usize>(head: &Head) -> LaneScales {
    let pick = |v: __m512i| match J % 4 {
        0 => byte::<0>(v),
        1 => byte::<1>(v),
        2 => byte::<2>(v),
        _ => byte::<3>(v),
    };
    scaled(head, pick(head.ints[J / 4]), pick(head.ints[2 + J / 4]))
}

/// Nibbles of group `J` of a K type: groups 2p and 2p + 1 share 32 bytes.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
unsafe fn k_nibbles<const J: usize>(column: Column, r: usize, at: usize) -> [__m512i; 2] {
    // SAFETY: the caller's blocks hold these bytes.
    let v = unsafe { [load4(column, r, at + 32 * (J / 2)), load4(column, r, at + 32 * (J / 2) + 16)] };
    if J.is_multiple_of(2) {
        [bits::<0>(v[0], 15), bits::<0>(v[1], 15)]
    } else {
        [bits::<4>(v[0], 15), bits::<4>(v[1], 15)]
    }
}

impl Wide for Q4K {
    const BIAS: i32 = 0;
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
    unsafe fn wide_quants<const J: usize>(column: Column, r: usize) -> [__m512i; 2] {
        // SAFETY: the caller's blocks.
        unsafe { k_nibbles::<J>(column, r, 16) }
    }
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
    unsafe fn head(column: Column) -> Head {
        // SAFETY: the caller's blocks.
        unsafe { k_head(column) }
    }
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
    unsafe fn wide_scales<const J: usize>(head: &Head) -> LaneScales {
        k_scales::<J>(head)
    }
}

impl Wide for Q5K {
    const BIAS: i32 = 0;
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
    unsafe fn wide_quants<const J: usize>(column: Column, r: usize) -> [__m512i; 2] {
        // SAFETY: the caller's blocks.
        let (low, high) = unsafe { (k_nibbles::<J>(column, r, 48), [load4(column, r, 16), load4(column, r, 32)]) };
        let (bit, sixteen) = (_mm512_set1_epi8(1u8.wrapping_shl(J as u32) as i8), _mm512_set1_epi8(16));
        let with_fifth =
            |low: __m512i, high: __m512i| _mm512_mask_add_epi8(low, _mm512_test_epi8_mask(high, bit), low, sixteen);
        [with_fifth(low[0], high[0]), with_fifth(low[1], high[1])]
    }
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
    unsafe fn head(column: Column) -> Head {
        // SAFETY: the caller's blocks.
        unsafe { k_head(column) }
    }
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
    unsafe fn wide_scales<const J: usize>(head: &Head) -> LaneScales {
        k_scales::<J>(head)
    }
}

impl Wide for Q6K {
    const BIAS: i32 = 32;
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
    unsafe fn wide_quants<const J: usize>(column: Column, r: usize) -> [__m512i; 2] {
        let (half, part) = (J / 4, J % 4);
        let six = |i: usize| {
            // SAFETY: the caller's blocks.
            let (low, high) = unsafe {
                (load4(column, r, 64 * half + 32 * (part % 2) + 16 * i), load4(column, r, 128 + 32 * half + 16 * i))
            };
            let low = if part < 2 { bits::<0>(low, 15) } else { bits::<4>(low, 15) };
            let high = match part {
                0 => _mm512_slli_epi16::<4>(high),
                1 => _mm512_slli_epi16::<2>(high),
                2 => high,
                _ => _mm512_srli_epi16::<2>(high),
            };
            // low | (high & 0x30)
            _mm512_ternarylogic_epi32::<0xf8>(low, high, _mm512_set1_epi8(0x30))
        };
        [six(0), six(1)]
    }
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
    unsafe fn head(column: Column) -> Head {
        // SAFETY: the caller's blocks.
        unsafe {
            let d = _mm512_cvtph_ps(words(column, Self::D));
            Head { d, m: d, ints: dwords(column, 192) }
        }
    }
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
    unsafe fn wide_scales<const J: usize>(head: &Head) -> LaneScales {
        // signed bytes 2J and 2J + 1
        let v = head.ints[J / 2];
        let scale = if J.is_multiple_of(2) {
            [_mm512_srai_epi32::<24>(_mm512_slli_epi32::<24>(v)), _mm512_srai_epi32::<24>(_mm512_slli_epi32::<16>(v))]
        } else {
            [_mm512_srai_epi32::<24>(_mm512_slli_epi32::<8>(v)), _mm512_srai_epi32::<24>(v)]
        };
        LaneScales { w_scale: head.d, w_min: head.m, scale, min: scale }
    }
}

/// Bytes 2J and 2J + 1 of sixteen bytes in four dwords.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
fn byte_pair<const J: usize>(v: &[__m512i; 4]) -> [__m512i; 2] {
    let v = v[J / 2];
    if J.is_multiple_of(2) { [byte::<0>(v), byte::<1>(v)] } else { [byte::<2>(v), byte::<3>(v)] }
}

/// Two-bit values of group `J`: 32 bytes hold four groups.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
unsafe fn two_bits<const J: usize>(column: Column, r: usize, at: usize) -> [__m512i; 2] {
    // SAFETY: the caller's blocks hold these bytes.
    let v = unsafe { [load4(column, r, at + 32 * (J / 4)), load4(column, r, at + 32 * (J / 4) + 16)] };
    v.map(|v| match J % 4 {
        0 => bits::<0>(v, 3),
        1 => bits::<2>(v, 3),
        2 => bits::<4>(v, 3),
        _ => bits::<6>(v, 3),
    })
}

impl Wide for Q2K {
    const BIAS: i32 = 0;
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
    unsafe fn wide_quants<const J: usize>(column: Column, r: usize) -> [__m512i; 2] {
        // SAFETY: the caller's blocks.
        unsafe { two_bits::<J>(column, r, 16) }
    }
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
    unsafe fn head(column: Column) -> Head {
        // SAFETY: the caller's blocks.
        unsafe {
            let (d, m) = (_mm512_cvtph_ps(words(column, Self::D)), _mm512_cvtph_ps(words(column, Self::M)));
            Head { d, m: minus(m), ints: dwords(column, 0) }
        }
    }
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
    unsafe fn wide_scales<const J: usize>(head: &Head) -> LaneScales {
        let pair = byte_pair::<J>(&head.ints);
        LaneScales {
            w_scale: head.d,
            w_min: head.m,
            scale: pair.map(|v| _mm512_and_si512(v, _mm512_set1_epi32(15))),
            min: pair.map(|v| _mm512_srli_epi32::<4>(v)),
        }
    }
}

impl Wide for Q3K {
    const BIAS: i32 = 4;
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
    unsafe fn wide_quants<const J: usize>(column: Column, r: usize) -> [__m512i; 2] {
        // SAFETY: the caller's blocks.
        let (low, mask) = unsafe { (two_bits::<J>(column, r, 32), [load4(column, r, 0), load4(column, r, 16)]) };
        let (bit, four) = (_mm512_set1_epi8(1u8.wrapping_shl(J as u32) as i8), _mm512_set1_epi8(4));
        let with_third =
            |low: __m512i, mask: __m512i| _mm512_mask_add_epi8(low, _mm512_test_epi8_mask(mask, bit), low, four);
        [with_third(low[0], mask[0]), with_third(low[1], mask[1])]
    }
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
    unsafe fn head(column: Column) -> Head {
        // Two bytes of quants, twelve of scales, d: the last sixteen of the block, moved by two.
        // SAFETY: the caller's blocks.
        let rows = unsafe { [0, 1, 2, 3].map(|r| load4(column, r, 94)) };
        let [a, b, c, d] = transpose(rows.map(|v| _mm512_bsrli_epi128::<2>(v)));
        let low = |v: __m512i| _mm512_and_si512(v, _mm512_set1_epi32(0x0f0f_0f0f));
        let high = |v: __m512i| _mm512_slli_epi32::<4>(_mm512_and_si512(v, _mm512_set1_epi32(0x0303_0303)));
        let d = halfs(d);
        Head {
            d,
            m: d,
            ints: [
                _mm512_or_si512(low(a), high(c)),
                _mm512_or_si512(low(b), high(_mm512_srli_epi32::<2>(c))),
                _mm512_or_si512(low(_mm512_srli_epi32::<4>(a)), high(_mm512_srli_epi32::<4>(c))),
                _mm512_or_si512(low(_mm512_srli_epi32::<4>(b)), high(_mm512_srli_epi32::<6>(c))),
            ],
        }
    }
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
    unsafe fn wide_scales<const J: usize>(head: &Head) -> LaneScales {
        let scale = byte_pair::<J>(&head.ints).map(|v| _mm512_sub_epi32(v, _mm512_set1_epi32(32)));
        LaneScales { w_scale: head.d, w_min: head.m, scale, min: scale }
    }
}

impl Wide for Iq4Xs {
    const BIAS: i32 = 128;
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
    unsafe fn wide_quants<const J: usize>(column: Column, r: usize) -> [__m512i; 2] {
        // SAFETY: the caller's blocks.
        unsafe { looked_up(column, r, 8 + 16 * J, &IQ4_VALUES, 128) }
    }
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
    unsafe fn head(column: Column) -> Head {
        // SAFETY: the caller's blocks.
        let ints = unsafe { dwords(column, 0) };
        let d = halfs(ints[0]);
        Head { d, m: d, ints }
    }
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
    unsafe fn wide_scales<const J: usize>(head: &Head) -> LaneScales {
        let shift = |v: __m512i, n: usize| _mm512_srl_epi32(v, _mm_cvtsi32_si128(n as i32));
        let low = _mm512_and_si512(shift(head.ints[1], 4 * J), _mm512_set1_epi32(15));
        let high = _mm512_and_si512(shift(head.ints[0], 16 + 2 * J), _mm512_set1_epi32(3));
        let scale = _mm512_or_si512(low, _mm512_slli_epi32::<4>(high));
        scaled(head, _mm512_sub_epi32(scale, _mm512_set1_epi32(32)), low)
    }
}

const _: () = assert!(DType::Q3_K.block_bytes() == 110 && DType::Q6_K.block_bytes() == 210);
