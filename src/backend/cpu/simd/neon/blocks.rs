//! How each quantized type is read: 32 signed bytes of a group, and its scales.

use std::arch::aarch64::*;

use crate::quant::{DType, Form, IQ4_VALUES, MXFP4_VALUES, e8m0_half, scale_iq4xs, scale_min, scale_q3};

/// 32 elements in order.
pub type Quants = [int8x16_t; 2];

/// Integer scales of one group of one row, per 16 elements.
#[derive(Clone, Copy, Default)]
pub struct Scales {
    pub scale: [i32; 2],
    pub min: [i32; 2],
}

/// A quantized type as SIMD reads it. Block pointers must be valid for `BYTES` bytes.
pub trait Blocks {
    const DTYPE: DType;
    const FORM: Form = match Self::DTYPE.form() {
        Some(form) => form,
        None => panic!("not a quantized type"),
    };
    const BYTES: usize = Self::DTYPE.block_bytes();
    /// Offset of the f16 scale.
    const D: usize = 0;
    /// Offset of the f16 minimum or minimum scale, where the form has one.
    const M: usize = 2;
    /// w_scale = d * scale[0] and w_min = m * min[0] (one integer scale per 32 elements).
    const SCALED: bool = false;

    /// Elements of group `j`.
    ///
    /// # Safety
    /// `block` is a whole block.
    unsafe fn quants(block: *const u8, j: usize) -> Quants;

    /// Integer scales of group `j`, where the type has them.
    ///
    /// # Safety
    /// `block` is a whole block.
    unsafe fn scales(_block: *const u8, _j: usize) -> Scales {
        Scales::default()
    }
}

/// 16 bytes of nibbles -> 32 bytes, low nibbles first.
#[inline]
#[target_feature(enable = "neon")]
unsafe fn nibbles(qs: *const u8) -> [uint8x16_t; 2] {
    // SAFETY: the caller's block holds the sixteen bytes.
    let bytes = unsafe { vld1q_u8(qs) };
    [vandq_u8(bytes, vdupq_n_u8(15)), vshrq_n_u8::<4>(bytes)]
}

/// Bit i of the four bytes at `bits` -> 16 in byte i.
#[inline]
#[target_feature(enable = "neon")]
unsafe fn fifth_bits(bits: *const u8) -> [uint8x16_t; 2] {
    // SAFETY: the caller's block holds the four bytes.
    let bytes = unsafe { bits.cast::<[u8; 4]>().read() };
    let bit = vcombine_u8(vcreate_u8(0x8040_2010_0804_0201), vcreate_u8(0x8040_2010_0804_0201));
    let sixteen = |a: u8, b: u8| {
        let spread = vcombine_u8(vdup_n_u8(a), vdup_n_u8(b));
        vandq_u8(vtstq_u8(spread, bit), vdupq_n_u8(16))
    };
    [sixteen(bytes[0], bytes[1]), sixteen(bytes[2], bytes[3])]
}

#[inline]
#[target_feature(enable = "neon")]
unsafe fn load(p: *const u8) -> [uint8x16_t; 2] {
    // SAFETY: the caller's block holds the 32 bytes.
    unsafe { [vld1q_u8(p), vld1q_u8(p.add(16))] }
}

/// (byte >> right) & mask, moved left again, in every byte.
#[inline]
#[target_feature(enable = "neon")]
fn bits<const LEFT: i32>(v: [uint8x16_t; 2], right: usize, mask: u8) -> [uint8x16_t; 2] {
    let (right, mask) = (vdupq_n_s8(-(right as i8)), vdupq_n_u8(mask));
    let sixteen = |v: uint8x16_t| vshlq_n_u8::<LEFT>(vandq_u8(vshlq_u8(v, right), mask));
    [sixteen(v[0]), sixteen(v[1])]
}

#[inline]
#[target_feature(enable = "neon")]
fn or(a: [uint8x16_t; 2], b: [uint8x16_t; 2]) -> [uint8x16_t; 2] {
    [vorrq_u8(a[0], b[0]), vorrq_u8(a[1], b[1])]
}

/// Elements without the offset they are stored with.
#[inline]
#[target_feature(enable = "neon")]
fn less(v: [uint8x16_t; 2], offset: i8) -> Quants {
    let sixteen = |v: uint8x16_t| vsubq_s8(vreinterpretq_s8_u8(v), vdupq_n_s8(offset));
    [sixteen(v[0]), sixteen(v[1])]
}

#[inline]
#[target_feature(enable = "neon")]
fn look_up(values: &[i8; 16], codes: [uint8x16_t; 2]) -> Quants {
    // SAFETY: sixteen bytes of the table.
    let table = unsafe { vld1q_s8(values.as_ptr()) };
    [vqtbl1q_s8(table, codes[0]), vqtbl1q_s8(table, codes[1])]
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
    #[inline]
    #[target_feature(enable = "neon")]
    unsafe fn quants(block: *const u8, _: usize) -> Quants {
        // SAFETY: the caller's block.
        less(unsafe { nibbles(block.add(2)) }, 8)
    }
}

pub struct Q4_1;
impl Blocks for Q4_1 {
    const DTYPE: DType = DType::Q4_1;
    #[inline]
    #[target_feature(enable = "neon")]
    unsafe fn quants(block: *const u8, _: usize) -> Quants {
        // SAFETY: the caller's block.
        less(unsafe { nibbles(block.add(4)) }, 0)
    }
}

pub struct Q5_0;
impl Blocks for Q5_0 {
    const DTYPE: DType = DType::Q5_0;
    #[inline]
    #[target_feature(enable = "neon")]
    unsafe fn quants(block: *const u8, _: usize) -> Quants {
        // SAFETY: the caller's block.
        less(unsafe { or(nibbles(block.add(6)), fifth_bits(block.add(2))) }, 16)
    }
}

pub struct Q5_1;
impl Blocks for Q5_1 {
    const DTYPE: DType = DType::Q5_1;
    #[inline]
    #[target_feature(enable = "neon")]
    unsafe fn quants(block: *const u8, _: usize) -> Quants {
        // SAFETY: the caller's block.
        less(unsafe { or(nibbles(block.add(8)), fifth_bits(block.add(4))) }, 0)
    }
}

pub struct Q8_0;
impl Blocks for Q8_0 {
    const DTYPE: DType = DType::Q8_0;
    #[inline]
    #[target_feature(enable = "neon")]
    unsafe fn quants(block: *const u8, _: usize) -> Quants {
        // SAFETY: the caller's block.
        less(unsafe { load(block.add(2)) }, 0)
    }
}

pub struct Q2K;
impl Blocks for Q2K {
    const DTYPE: DType = DType::Q2_K;
    const D: usize = 80;
    const M: usize = 82;
    #[inline]
    #[target_feature(enable = "neon")]
    unsafe fn quants(block: *const u8, j: usize) -> Quants {
        // SAFETY: the caller's block.
        less(bits::<0>(unsafe { load(block.add(16 + 32 * (j / 4))) }, 2 * (j % 4), 3), 0)
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
    const D: usize = 108;
    #[inline]
    #[target_feature(enable = "neon")]
    unsafe fn quants(block: *const u8, j: usize) -> Quants {
        // SAFETY: the caller's block.
        let (low, mask) = unsafe { (load(block.add(32 + 32 * (j / 4))), load(block)) };
        less(or(bits::<0>(low, 2 * (j % 4), 3), bits::<2>(mask, j, 1)), 4)
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
    const SCALED: bool = true;
    #[inline]
    #[target_feature(enable = "neon")]
    unsafe fn quants(block: *const u8, j: usize) -> Quants {
        // SAFETY: the caller's block.
        less(bits::<0>(unsafe { load(block.add(16 + 32 * (j / 2))) }, 4 * (j % 2), 15), 0)
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
    const SCALED: bool = true;
    #[inline]
    #[target_feature(enable = "neon")]
    unsafe fn quants(block: *const u8, j: usize) -> Quants {
        // SAFETY: the caller's block.
        let (low, high) = unsafe { (load(block.add(48 + 32 * (j / 2))), load(block.add(16))) };
        less(or(bits::<0>(low, 4 * (j % 2), 15), bits::<4>(high, j, 1)), 0)
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
    const D: usize = 208;
    #[inline]
    #[target_feature(enable = "neon")]
    unsafe fn quants(block: *const u8, j: usize) -> Quants {
        let (half, part) = (j / 4, j % 4);
        // SAFETY: the caller's block.
        let (low, high) = unsafe { (load(block.add(64 * half + 32 * (part % 2))), load(block.add(128 + 32 * half))) };
        less(or(bits::<0>(low, 4 * (part / 2), 15), bits::<4>(high, 2 * part, 3)), 32)
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
    #[inline]
    #[target_feature(enable = "neon")]
    unsafe fn quants(block: *const u8, _: usize) -> Quants {
        // SAFETY: the caller's block.
        look_up(&IQ4_VALUES, unsafe { nibbles(block.add(2)) })
    }
}

pub struct Iq4Xs;
impl Blocks for Iq4Xs {
    const DTYPE: DType = DType::IQ4_XS;
    const SCALED: bool = true;
    #[inline]
    #[target_feature(enable = "neon")]
    unsafe fn quants(block: *const u8, j: usize) -> Quants {
        // SAFETY: the caller's block.
        look_up(&IQ4_VALUES, unsafe { nibbles(block.add(8 + 16 * j)) })
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
    #[inline]
    #[target_feature(enable = "neon")]
    unsafe fn quants(block: *const u8, _: usize) -> Quants {
        // SAFETY: the caller's block.
        look_up(&MXFP4_VALUES, unsafe { nibbles(block.add(1)) })
    }
}

/// The f32 scale of a block of MXFP4.
///
/// # Safety
/// `block` is a whole block.
#[inline]
pub unsafe fn mxfp4_scale(block: *const u8) -> f32 {
    // SAFETY: the caller's block.
    e8m0_half(unsafe { *block })
}
