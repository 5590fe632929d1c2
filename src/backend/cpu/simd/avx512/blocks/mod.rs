//! How each quantized type is read sixteen rows at a time: unsigned bytes, and scales in lanes.
//!
//! A register holds sixteen bytes of each of four rows (r, r + 4, r + 8, r + 12), one row per 128-bit lane; four of them
//! make a panel. Signed values come with a bias that makes them unsigned, as VNNI multiplies unsigned by signed.

mod k;
mod legacy;

use std::arch::x86_64::*;

use super::super::avx2::blocks::Blocks;
use crate::quant::IQ4_VALUES;

/// Rows in the lanes.
pub const ROWS: usize = 16;

/// `UNIT` groups that follow each other, in sixteen rows: where those of row 0 start, the others at multiples of `stride`.
#[derive(Clone, Copy)]
pub struct Column {
    pub first: *const u8,
    pub stride: usize,
}

/// Scales of one group of sixteen rows, by `Form`; what a form has no use for is zero. Integer scales are small enough
/// that their products with sums are exact as floats too (CPU.md, 4: below 2^24).
#[derive(Clone, Copy)]
pub struct LaneScales {
    pub w_scale: __m512,
    /// Times x_sum, added.
    pub w_min: __m512,
    /// Of both halves.
    pub scale: [__m512; 2],
    pub min: [__m512; 2],
}

/// A quantized type as sixteen rows. All functions read within the groups of the column.
pub trait Wide: Blocks {
    /// Groups whose scales are read together: four blocks of a legacy type, one block of a K type.
    const UNIT: usize;

    /// What a column holds beside its elements.
    type Head: Copy;

    /// Elements 0..16 and 16..32 of group `J` of rows `r`, r + 4, r + 8, r + 12, plus `BIAS`.
    ///
    /// # Safety
    /// `column` is a column of sixteen rows and `r` below 4; the CPU has AVX-512.
    unsafe fn wide_quants<const J: usize>(column: Column, r: usize) -> [__m512i; 2];

    /// # Safety
    /// `column` is a column of sixteen rows; the CPU has AVX-512.
    unsafe fn head(column: Column) -> Self::Head;

    /// # Safety
    /// The CPU has AVX-512.
    unsafe fn lane_scales<const J: usize>(head: &Self::Head) -> LaneScales;
}

/// Sixteen bytes at `at` of four rows.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
unsafe fn load4(column: Column, r: usize, at: usize) -> __m512i {
    // SAFETY: the caller's column holds these bytes.
    unsafe {
        let row = column.first.add(r * column.stride + at);
        let (a, b) = (_mm_loadu_si128(row.cast()), _mm_loadu_si128(row.add(4 * column.stride).cast()));
        let row = row.add(8 * column.stride);
        let (c, d) = (_mm_loadu_si128(row.cast()), _mm_loadu_si128(row.add(4 * column.stride).cast()));
        let low = _mm256_inserti128_si256::<1>(_mm256_castsi128_si256(a), b);
        let high = _mm256_inserti128_si256::<1>(_mm256_castsi128_si256(c), d);
        _mm512_inserti64x4::<1>(_mm512_castsi256_si512(low), high)
    }
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
///
/// # Safety
/// All sixteen rows of the column hold these bytes; the CPU has AVX-512.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
pub unsafe fn dwords(column: Column, at: usize) -> [__m512i; 4] {
    // SAFETY: the caller's column holds these bytes.
    unsafe { transpose([load4(column, 0, at), load4(column, 1, at), load4(column, 2, at), load4(column, 3, at)]) }
}

/// The u16 at `at` of all rows.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
unsafe fn words(column: Column, at: usize) -> __m256i {
    let mut words = [0u16; ROWS];
    for (r, word) in words.iter_mut().enumerate() {
        // SAFETY: the caller's column holds these bytes.
        *word = unsafe { column.first.add(r * column.stride + at).cast::<u16>().read_unaligned() };
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

/// Both nibbles of sixteen bytes: elements 0..16 are the low ones, 16..32 the high ones.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
unsafe fn nibbles(column: Column, r: usize, at: usize) -> [__m512i; 2] {
    // SAFETY: the caller's column holds these bytes.
    let v = unsafe { load4(column, r, at) };
    [bits::<0>(v, 15), bits::<4>(v, 15)]
}

/// `values` with `BIAS` added, in every 128-bit lane: the table of a byte shuffle.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
fn table<const BIAS: i8>(values: &[i8; 16]) -> __m512i {
    // SAFETY: sixteen bytes of the table.
    let values = unsafe { _mm_loadu_si128(values.as_ptr().cast()) };
    _mm512_broadcast_i32x4(_mm_add_epi8(values, _mm_set1_epi8(BIAS)))
}

/// Nibbles looked up in a table.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
unsafe fn looked_up(column: Column, r: usize, at: usize, table: __m512i) -> [__m512i; 2] {
    // SAFETY: the caller's column.
    let [low, high] = unsafe { nibbles(column, r, at) };
    [_mm512_shuffle_epi8(table, low), _mm512_shuffle_epi8(table, high)]
}

/// Nibbles looked up in the table of IQ4_NL and IQ4_XS, plus 128.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
unsafe fn iq4_values(column: Column, r: usize, at: usize) -> [__m512i; 2] {
    // SAFETY: the caller's column. -128 is 128 modulo 256.
    unsafe { looked_up(column, r, at, table::<-128>(&IQ4_VALUES)) }
}
