//! Types whose four bits index a table: IQ4_NL and IQ4_XS (non-linear), MXFP4 (4-bit floats).

use half::f16;

use super::legacy::nibbles;
use super::{Block, DType, Group};

/// Values of the 16 codes of IQ4_NL and IQ4_XS.
pub const IQ4_VALUES: [i8; 16] = [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];

/// Twice the values of the 16 codes of a 4-bit float (sign, 2 bits of exponent, 1 of fraction).
pub const MXFP4_VALUES: [i8; 16] = [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12];

/// `d f16 | 16 bytes of codes`: value = d * table[code]
#[repr(C)]
pub struct BlockIQ4NL {
    d: [u8; 2],
    qs: [u8; 16],
}

/// `d f16 | high scale bits u16 | 4 bytes of low scale nibbles | 8 x 16 bytes of codes`: groups of 32,
/// value = d * (scale - 32) * table[code]
#[repr(C)]
pub struct BlockIQ4XS {
    d: [u8; 2],
    scales_h: [u8; 2],
    scales_l: [u8; 4],
    qs: [[u8; 16]; 8],
}

/// `power of two u8 | 16 bytes of codes`: value = 2^(e - 127) * table[code] / 2
#[repr(C)]
pub struct BlockMXFP4 {
    e: u8,
    qs: [u8; 16],
}

/// 2^(e - 128): half of the E8M0 value, because the table holds doubled values. Exact, below e = 2 a subnormal.
pub fn e8m0_half(e: u8) -> f32 {
    f32::from_bits(if e < 2 { 0x0020_0000 << e } else { (u32::from(e) - 1) << 23 })
}

/// Scale of group j (0..8) of IQ4_XS, its offset of 32 taken off.
pub fn scale_iq4xs(scales_h: [u8; 2], scales_l: &[u8; 4], j: usize) -> i32 {
    let low = scales_l[j / 2] >> (4 * (j % 2)) & 15;
    let high = u16::from_le_bytes(scales_h) >> (2 * j) & 3;
    i32::from(low) + (i32::from(high) << 4) - 32
}

// SAFETY: repr(C), byte arrays only.
unsafe impl Block for BlockIQ4NL {
    const DTYPE: DType = DType::IQ4_NL;
    fn group(&self, _: usize) -> Group {
        let q = nibbles(&self.qs).map(|code| IQ4_VALUES[usize::from(code)]);
        Group::with_scale(q, f16::from_le_bytes(self.d).to_f32(), 0.0)
    }
}

// SAFETY: repr(C), byte arrays only.
unsafe impl Block for BlockIQ4XS {
    const DTYPE: DType = DType::IQ4_XS;
    fn group(&self, j: usize) -> Group {
        let q = nibbles(&self.qs[j]).map(|code| IQ4_VALUES[usize::from(code)]);
        let scale = scale_iq4xs(self.scales_h, &self.scales_l, j);
        Group::with_scale(q, f16::from_le_bytes(self.d).to_f32() * scale as f32, 0.0)
    }
}

// SAFETY: repr(C), byte arrays only.
unsafe impl Block for BlockMXFP4 {
    const DTYPE: DType = DType::MXFP4;
    fn group(&self, _: usize) -> Group {
        let q = nibbles(&self.qs).map(|code| MXFP4_VALUES[usize::from(code)]);
        Group::with_scale(q, e8m0_half(self.e), 0.0)
    }
}
