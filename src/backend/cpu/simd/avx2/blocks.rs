//! How each quantized type is read eight rows at a time: 32 unsigned bytes per group, and its scales.

use std::arch::x86_64::*;

use crate::quant::{DType, Form, IQ4_VALUES, MXFP4_VALUES, e8m0_half, scale_iq4xs, scale_min, scale_q3};

/// Scales of one group of one row before conversion.
#[derive(Clone, Copy, Default)]
pub struct Scales {
    pub scale: [i32; 2],
    pub min: [i32; 2],
}

/// A quantized type as SIMD reads it. Block pointers must be valid for `DTYPE.block_bytes()` bytes.
pub trait Blocks {
    const DTYPE: DType;
    const FORM: Form = match Self::DTYPE.form() {
        Some(form) => form,
        None => panic!("not a quantized type"),
    };
    const BYTES: usize = Self::DTYPE.block_bytes();
    /// Offset of the f16 scale.
    const D: usize;
    /// Offset of the f16 minimum or minimum scale, where the form has one.
    const M: usize = 0;
    /// w_scale = d * scale[0] and w_min = m * min[0] (one integer scale per 32 elements).
    const SCALED: bool = false;

    /// Added to the elements, so that they are unsigned.
    const BIAS: i32;
    /// Largest element with `BIAS`.
    const MAX: i32;

    /// Elements of group `j` plus `BIAS`, in order.
    ///
    /// # Safety
    /// `block` is a whole block; the CPU has AVX2.
    unsafe fn quants(block: *const u8, j: usize) -> __m256i;

    /// Integer scales of group `j`, where the type has them.
    ///
    /// # Safety
    /// `block` is a whole block.
    unsafe fn scales(_block: *const u8, _j: usize) -> Scales {
        Scales::default()
    }

    /// The f32 scale where it is no f16 (MXFP4).
    ///
    /// # Safety
    /// `block` is a whole block.
    unsafe fn f32_scale(_block: *const u8) -> Option<f32> {
        None
    }
}

/// 16 bytes of nibbles -> 32 bytes, low nibbles first.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn nibbles(qs: *const u8) -> __m256i {
    // SAFETY: the caller's block holds the sixteen bytes.
    let bytes = unsafe { _mm_loadu_si128(qs.cast()) };
    let both = _mm256_inserti128_si256::<1>(_mm256_castsi128_si256(bytes), _mm_srli_epi16::<4>(bytes));
    _mm256_and_si256(both, _mm256_set1_epi8(15))
}

/// Bit i of `bits` -> 16 in byte i.
#[inline]
#[target_feature(enable = "avx2")]
fn fifth_bits(bits: u32) -> __m256i {
    let spread = _mm256_set_epi64x(0x0303_0303_0303_0303, 0x0202_0202_0202_0202, 0x0101_0101_0101_0101, 0);
    let bytes = _mm256_shuffle_epi8(_mm256_set1_epi32(bits as i32), spread);
    let bit = _mm256_set1_epi64x(0x8040_2010_0804_0201_u64 as i64);
    let set = _mm256_cmpeq_epi8(_mm256_and_si256(bytes, bit), bit);
    _mm256_and_si256(set, _mm256_set1_epi8(16))
}

#[inline]
#[target_feature(enable = "avx2")]
unsafe fn load(p: *const u8) -> __m256i {
    // SAFETY: the caller's block holds the 32 bytes.
    unsafe { _mm256_loadu_si256(p.cast()) }
}

/// (byte >> shift) & mask in every byte; `shift` below 8.
#[inline]
#[target_feature(enable = "avx2")]
fn bits(v: __m256i, shift: usize, mask: i8) -> __m256i {
    _mm256_and_si256(_mm256_srl_epi16(v, _mm_cvtsi32_si128(shift as i32)), _mm256_set1_epi8(mask))
}

#[inline]
#[target_feature(enable = "avx2")]
fn table<const BIAS: i8>(values: &[i8; 16], codes: __m256i) -> __m256i {
    // SAFETY: sixteen bytes of the table.
    let table = _mm_add_epi8(unsafe { _mm_loadu_si128(values.as_ptr().cast()) }, _mm_set1_epi8(BIAS));
    _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(table), codes)
}

/// An array of `N` bytes at an offset of a block.
#[inline]
unsafe fn bytes<const N: usize>(block: *const u8, at: usize) -> [u8; N] {
    // SAFETY: the caller's block holds these bytes; arrays of bytes have no alignment.
    unsafe { block.add(at).cast::<[u8; N]>().read() }
}

pub struct Q4_0;
impl Blocks for Q4_0 {
    const DTYPE: DType = DType::Q4_0;
    const BIAS: i32 = 8;
    const MAX: i32 = 15;
    const D: usize = 0;
    #[inline]
    #[target_feature(enable = "avx2")]
    unsafe fn quants(block: *const u8, _: usize) -> __m256i {
        // SAFETY: the caller's block.
        unsafe { nibbles(block.add(2)) }
    }
}

pub struct Q4_1;
impl Blocks for Q4_1 {
    const DTYPE: DType = DType::Q4_1;
    const BIAS: i32 = 0;
    const MAX: i32 = 15;
    const D: usize = 0;
    const M: usize = 2;
    #[inline]
    #[target_feature(enable = "avx2")]
    unsafe fn quants(block: *const u8, _: usize) -> __m256i {
        // SAFETY: the caller's block.
        unsafe { nibbles(block.add(4)) }
    }
}

pub struct Q5_0;
impl Blocks for Q5_0 {
    const DTYPE: DType = DType::Q5_0;
    const BIAS: i32 = 16;
    const MAX: i32 = 31;
    const D: usize = 0;
    #[inline]
    #[target_feature(enable = "avx2")]
    unsafe fn quants(block: *const u8, _: usize) -> __m256i {
        // SAFETY: the caller's block.
        let (low, high) = unsafe { (nibbles(block.add(6)), u32::from_le_bytes(bytes(block, 2))) };
        _mm256_or_si256(low, fifth_bits(high))
    }
}

pub struct Q5_1;
impl Blocks for Q5_1 {
    const DTYPE: DType = DType::Q5_1;
    const BIAS: i32 = 0;
    const MAX: i32 = 31;
    const D: usize = 0;
    const M: usize = 2;
    #[inline]
    #[target_feature(enable = "avx2")]
    unsafe fn quants(block: *const u8, _: usize) -> __m256i {
        // SAFETY: the caller's block.
        let (low, high) = unsafe { (nibbles(block.add(8)), u32::from_le_bytes(bytes(block, 4))) };
        _mm256_or_si256(low, fifth_bits(high))
    }
}

pub struct Q8_0;
impl Blocks for Q8_0 {
    const DTYPE: DType = DType::Q8_0;
    const BIAS: i32 = 128;
    const MAX: i32 = 255;
    const D: usize = 0;
    #[inline]
    #[target_feature(enable = "avx2")]
    unsafe fn quants(block: *const u8, _: usize) -> __m256i {
        // SAFETY: the caller's block.
        _mm256_xor_si256(unsafe { load(block.add(2)) }, _mm256_set1_epi8(-128))
    }
}

pub struct Q2K;
impl Blocks for Q2K {
    const DTYPE: DType = DType::Q2_K;
    const BIAS: i32 = 0;
    const MAX: i32 = 3;
    const D: usize = 80;
    const M: usize = 82;
    #[inline]
    #[target_feature(enable = "avx2")]
    unsafe fn quants(block: *const u8, j: usize) -> __m256i {
        // SAFETY: the caller's block.
        bits(unsafe { load(block.add(16 + 32 * (j / 4))) }, 2 * (j % 4), 3)
    }
    #[inline]
    unsafe fn scales(block: *const u8, j: usize) -> Scales {
        // SAFETY: the caller's block.
        let both: [u8; 2] = unsafe { bytes(block, 2 * j) };
        Scales { scale: both.map(|s| i32::from(s & 15)), min: both.map(|s| i32::from(s >> 4)) }
    }
}

pub struct Q3K;
impl Blocks for Q3K {
    const DTYPE: DType = DType::Q3_K;
    const BIAS: i32 = 4;
    const MAX: i32 = 7;
    const D: usize = 108;
    #[inline]
    #[target_feature(enable = "avx2")]
    unsafe fn quants(block: *const u8, j: usize) -> __m256i {
        // SAFETY: the caller's block.
        let (low, mask) = unsafe { (load(block.add(32 + 32 * (j / 4))), load(block)) };
        let high = _mm256_slli_epi16::<2>(bits(mask, j, 1));
        _mm256_or_si256(bits(low, 2 * (j % 4), 3), high)
    }
    #[inline]
    unsafe fn scales(block: *const u8, j: usize) -> Scales {
        // SAFETY: the caller's block.
        let packed: [u8; 12] = unsafe { bytes(block, 96) };
        Scales { scale: [scale_q3(&packed, 2 * j), scale_q3(&packed, 2 * j + 1)], min: [0; 2] }
    }
}

/// The 6-bit scale and minimum of group `j` of Q4_K and Q5_K.
#[inline]
unsafe fn k_scales(block: *const u8, j: usize) -> Scales {
    // SAFETY: the caller's block.
    let (scale, min) = scale_min(&unsafe { bytes(block, 4) }, j);
    Scales { scale: [i32::from(scale); 2], min: [i32::from(min); 2] }
}

pub struct Q4K;
impl Blocks for Q4K {
    const DTYPE: DType = DType::Q4_K;
    const BIAS: i32 = 0;
    const MAX: i32 = 15;
    const D: usize = 0;
    const M: usize = 2;
    const SCALED: bool = true;
    #[inline]
    #[target_feature(enable = "avx2")]
    unsafe fn quants(block: *const u8, j: usize) -> __m256i {
        // SAFETY: the caller's block.
        bits(unsafe { load(block.add(16 + 32 * (j / 2))) }, 4 * (j % 2), 15)
    }
    #[inline]
    unsafe fn scales(block: *const u8, j: usize) -> Scales {
        // SAFETY: the caller's block.
        unsafe { k_scales(block, j) }
    }
}

pub struct Q5K;
impl Blocks for Q5K {
    const DTYPE: DType = DType::Q5_K;
    const BIAS: i32 = 0;
    const MAX: i32 = 31;
    const D: usize = 0;
    const M: usize = 2;
    const SCALED: bool = true;
    #[inline]
    #[target_feature(enable = "avx2")]
    unsafe fn quants(block: *const u8, j: usize) -> __m256i {
        // SAFETY: the caller's block.
        let (low, high) = unsafe { (load(block.add(48 + 32 * (j / 2))), load(block.add(16))) };
        _mm256_or_si256(bits(low, 4 * (j % 2), 15), _mm256_slli_epi16::<4>(bits(high, j, 1)))
    }
    #[inline]
    unsafe fn scales(block: *const u8, j: usize) -> Scales {
        // SAFETY: the caller's block.
        unsafe { k_scales(block, j) }
    }
}

pub struct Q6K;
impl Blocks for Q6K {
    const DTYPE: DType = DType::Q6_K;
    const BIAS: i32 = 32;
    const MAX: i32 = 63;
    const D: usize = 208;
    #[inline]
    #[target_feature(enable = "avx2")]
    unsafe fn quants(block: *const u8, j: usize) -> __m256i {
        let (half, part) = (j / 4, j % 4);
        // SAFETY: the caller's block.
        let (low, high) = unsafe { (load(block.add(64 * half + 32 * (part % 2))), load(block.add(128 + 32 * half))) };
        let high = _mm256_slli_epi16::<4>(bits(high, 2 * part, 3));
        _mm256_or_si256(bits(low, 4 * (part / 2), 15), high)
    }
    #[inline]
    unsafe fn scales(block: *const u8, j: usize) -> Scales {
        // SAFETY: the caller's block.
        let both: [u8; 2] = unsafe { bytes(block, 192 + 2 * j) };
        Scales { scale: both.map(|s| i32::from(s as i8)), min: [0; 2] }
    }
}

pub struct Iq4Nl;
impl Blocks for Iq4Nl {
    const DTYPE: DType = DType::IQ4_NL;
    const BIAS: i32 = 128;
    const MAX: i32 = 255;
    const D: usize = 0;
    #[inline]
    #[target_feature(enable = "avx2")]
    unsafe fn quants(block: *const u8, _: usize) -> __m256i {
        // SAFETY: the caller's block.
        table::<-128>(&IQ4_VALUES, unsafe { nibbles(block.add(2)) })
    }
}

pub struct Iq4Xs;
impl Blocks for Iq4Xs {
    const DTYPE: DType = DType::IQ4_XS;
    const BIAS: i32 = 128;
    const MAX: i32 = 255;
    const D: usize = 0;
    const SCALED: bool = true;
    #[inline]
    #[target_feature(enable = "avx2")]
    unsafe fn quants(block: *const u8, j: usize) -> __m256i {
        // SAFETY: the caller's block.
        table::<-128>(&IQ4_VALUES, unsafe { nibbles(block.add(8 + 16 * j)) })
    }
    #[inline]
    unsafe fn scales(block: *const u8, j: usize) -> Scales {
        // SAFETY: the caller's block.
        let scale = unsafe { scale_iq4xs(bytes(block, 2), &bytes(block, 4), j) };
        Scales { scale: [scale; 2], min: [0; 2] }
    }
}

pub struct Mxfp4;
impl Blocks for Mxfp4 {
    const DTYPE: DType = DType::MXFP4;
    const BIAS: i32 = 12;
    const MAX: i32 = 24;
    const D: usize = 0;
    #[inline]
    #[target_feature(enable = "avx2")]
    unsafe fn quants(block: *const u8, _: usize) -> __m256i {
        // SAFETY: the caller's block.
        table::<12>(&MXFP4_VALUES, unsafe { nibbles(block.add(1)) })
    }
    #[inline]
    unsafe fn f32_scale(block: *const u8) -> Option<f32> {
        // SAFETY: the caller's block.
        Some(e8m0_half(unsafe { *block }))
    }
}
