//! The first ggml types: 32 elements per block, one f16 scale, for some a f16 minimum.
//!
//! Nibbles of `qs[j]`: low is element j, high is element j + 16.

use half::f16;

use super::{Block, DType, GROUP, Group};

/// `d f16 | 16 bytes of nibbles`: value = d * (q - 8)
#[repr(C)]
pub struct BlockQ4_0 {
    d: [u8; 2],
    qs: [u8; 16],
}

/// `d f16 | m f16 | 16 bytes of nibbles`: value = d * q + m
#[repr(C)]
pub struct BlockQ4_1 {
    d: [u8; 2],
    m: [u8; 2],
    qs: [u8; 16],
}

/// `d f16 | fifth bits u32 | 16 bytes of nibbles`: value = d * (q - 16)
#[repr(C)]
pub struct BlockQ5_0 {
    d: [u8; 2],
    qh: [u8; 4],
    qs: [u8; 16],
}

/// `d f16 | m f16 | fifth bits u32 | 16 bytes of nibbles`: value = d * q + m
#[repr(C)]
pub struct BlockQ5_1 {
    d: [u8; 2],
    m: [u8; 2],
    qh: [u8; 4],
    qs: [u8; 16],
}

/// `d f16 | 32 x i8`: value = d * q
#[repr(C)]
pub struct BlockQ8_0 {
    d: [u8; 2],
    qs: [i8; 32],
}

/// The 32 nibbles of 16 bytes, low ones first.
pub fn nibbles(qs: &[u8; 16]) -> [u8; GROUP] {
    std::array::from_fn(|i| if i < 16 { qs[i] & 15 } else { qs[i - 16] >> 4 })
}

/// Nibbles with bit i of `qh` as the fifth bit of element i.
fn five_bits(qs: &[u8; 16], qh: [u8; 4]) -> [u8; GROUP] {
    let low = nibbles(qs);
    let high = u32::from_le_bytes(qh);
    std::array::from_fn(|i| low[i] | ((high >> i & 1) as u8) << 4)
}

// SAFETY: repr(C), byte arrays only.
unsafe impl Block for BlockQ4_0 {
    const DTYPE: DType = DType::Q4_0;
    fn group(&self, _: usize) -> Group {
        let q = nibbles(&self.qs).map(|q| q as i8 - 8);
        Group::with_scale(q, f16::from_le_bytes(self.d).to_f32(), 0.0)
    }
}

// SAFETY: repr(C), byte arrays only.
unsafe impl Block for BlockQ4_1 {
    const DTYPE: DType = DType::Q4_1;
    fn group(&self, _: usize) -> Group {
        let q = nibbles(&self.qs).map(|q| q as i8);
        Group::with_scale(q, f16::from_le_bytes(self.d).to_f32(), -f16::from_le_bytes(self.m).to_f32())
    }
}

// SAFETY: repr(C), byte arrays only.
unsafe impl Block for BlockQ5_0 {
    const DTYPE: DType = DType::Q5_0;
    fn group(&self, _: usize) -> Group {
        let q = five_bits(&self.qs, self.qh).map(|q| q as i8 - 16);
        Group::with_scale(q, f16::from_le_bytes(self.d).to_f32(), 0.0)
    }
}

// SAFETY: repr(C), byte arrays only.
unsafe impl Block for BlockQ5_1 {
    const DTYPE: DType = DType::Q5_1;
    fn group(&self, _: usize) -> Group {
        let q = five_bits(&self.qs, self.qh).map(|q| q as i8);
        Group::with_scale(q, f16::from_le_bytes(self.d).to_f32(), -f16::from_le_bytes(self.m).to_f32())
    }
}

// SAFETY: repr(C), byte arrays only.
unsafe impl Block for BlockQ8_0 {
    const DTYPE: DType = DType::Q8_0;
    fn group(&self, _: usize) -> Group {
        Group::with_scale(self.qs, f16::from_le_bytes(self.d).to_f32(), 0.0)
    }
}
