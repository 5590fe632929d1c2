//! K-quants: super-blocks of 256 elements whose sub-scales are integers times one f16 scale.

use half::f16;

use super::{Block, DType, GROUP, Group};

/// `16 x (scale, min) nibbles | 64 bytes of 2-bit values | d f16 | dmin f16`: sub-groups of 16,
/// value = d * scale * q - dmin * min
#[repr(C)]
pub struct BlockQ2K {
    scales: [u8; 16],
    qs: [u8; 64],
    d: [u8; 2],
    dmin: [u8; 2],
}

/// `32 bytes of third bits | 64 bytes of 2-bit values | 12 bytes of 6-bit scales | d f16`: sub-groups of 16,
/// value = d * (scale - 32) * (q - 4)
#[repr(C)]
pub struct BlockQ3K {
    hmask: [u8; 32],
    qs: [u8; 64],
    scales: [u8; 12],
    d: [u8; 2],
}

/// `d f16 | dmin f16 | 12 bytes of 6-bit scales and mins | 128 bytes of nibbles`: groups of 32,
/// value = d * scale * q - dmin * min
#[repr(C)]
pub struct BlockQ4K {
    d: [u8; 2],
    dmin: [u8; 2],
    scales: [u8; 12],
    qs: [u8; 128],
}

/// Q4_K with a fifth bit: bit g of `qh[i]` belongs to element i of group g.
#[repr(C)]
pub struct BlockQ5K {
    d: [u8; 2],
    dmin: [u8; 2],
    scales: [u8; 12],
    qh: [u8; 32],
    qs: [u8; 128],
}

/// `128 bytes of low nibbles | 64 bytes of high 2-bit values | 16 x i8 scales | d f16`: sub-groups of 16,
/// value = d * scale * (q - 32)
#[repr(C)]
pub struct BlockQ6K {
    ql: [u8; 128],
    qh: [u8; 64],
    scales: [i8; 16],
    d: [u8; 2],
}

/// Scale and minimum j of the 12 packed bytes of Q4_K and Q5_K.
pub fn scale_min(s: &[u8; 12], j: usize) -> (u8, u8) {
    if j < 4 {
        (s[j] & 63, s[j + 4] & 63)
    } else {
        ((s[j + 4] & 15) | (s[j - 4] >> 6) << 4, (s[j + 4] >> 4) | (s[j] >> 6) << 4)
    }
}

/// Scale k (0..16) of the 12 packed bytes of Q3_K, its offset of 32 taken off.
pub fn scale_q3(s: &[u8; 12], k: usize) -> i32 {
    let low = if k < 8 { s[k] & 15 } else { s[k - 8] >> 4 };
    let high = s[8 + k % 4] >> (2 * (k / 4)) & 3;
    i32::from(low | high << 4) - 32
}

// SAFETY: repr(C), byte arrays only.
unsafe impl Block for BlockQ2K {
    const DTYPE: DType = DType::Q2_K;
    fn group(&self, j: usize) -> Group {
        let (half, shift) = (j / 4, 2 * (j % 4));
        let scales = [self.scales[2 * j], self.scales[2 * j + 1]];
        Group {
            q: std::array::from_fn(|i| (self.qs[32 * half + i] >> shift & 3) as i8),
            w_scale: f16::from_le_bytes(self.d).to_f32(),
            sub_scale: scales.map(|s| i32::from(s & 15)),
            w_min: f16::from_le_bytes(self.dmin).to_f32(),
            sub_min: scales.map(|s| i32::from(s >> 4)),
        }
    }
}

// SAFETY: repr(C), byte arrays only.
unsafe impl Block for BlockQ3K {
    const DTYPE: DType = DType::Q3_K;
    fn group(&self, j: usize) -> Group {
        let (half, shift) = (j / 4, 2 * (j % 4));
        Group {
            q: std::array::from_fn(|i| {
                let low = (self.qs[32 * half + i] >> shift & 3) as i8;
                if self.hmask[i] >> j & 1 == 1 { low } else { low - 4 }
            }),
            w_scale: f16::from_le_bytes(self.d).to_f32(),
            sub_scale: [scale_q3(&self.scales, 2 * j), scale_q3(&self.scales, 2 * j + 1)],
            w_min: 0.0,
            sub_min: [1, 1],
        }
    }
}

/// Nibbles of group j: groups 2p and 2p + 1 share the bytes qs[32p..32p + 32], low and high.
fn group_nibbles(qs: &[u8; 128], j: usize) -> [u8; GROUP] {
    std::array::from_fn(|i| qs[32 * (j / 2) + i] >> (4 * (j % 2)) & 15)
}

// SAFETY: repr(C), byte arrays only.
unsafe impl Block for BlockQ4K {
    const DTYPE: DType = DType::Q4_K;
    fn group(&self, j: usize) -> Group {
        let (scale, min) = scale_min(&self.scales, j);
        // both products are exact: 11 bits of f16 times 6 bits
        let w_scale = f16::from_le_bytes(self.d).to_f32() * f32::from(scale);
        let w_min = f16::from_le_bytes(self.dmin).to_f32() * f32::from(min);
        Group::with_scale(group_nibbles(&self.qs, j).map(|q| q as i8), w_scale, w_min)
    }
}

// SAFETY: repr(C), byte arrays only.
unsafe impl Block for BlockQ5K {
    const DTYPE: DType = DType::Q5_K;
    fn group(&self, j: usize) -> Group {
        let (scale, min) = scale_min(&self.scales, j);
        let w_scale = f16::from_le_bytes(self.d).to_f32() * f32::from(scale);
        let w_min = f16::from_le_bytes(self.dmin).to_f32() * f32::from(min);
        let low = group_nibbles(&self.qs, j);
        Group::with_scale(std::array::from_fn(|i| (low[i] | (self.qh[i] >> j & 1) << 4) as i8), w_scale, w_min)
    }
}

// SAFETY: repr(C), byte arrays only.
unsafe impl Block for BlockQ6K {
    const DTYPE: DType = DType::Q6_K;
    fn group(&self, j: usize) -> Group {
        let (half, part) = (j / 4, j % 4);
        Group {
            q: std::array::from_fn(|i| {
                let low = self.ql[64 * half + 32 * (part % 2) + i] >> (4 * (part / 2)) & 15;
                let high = self.qh[32 * half + i] >> (2 * part) & 3;
                (low | high << 4) as i8 - 32
            }),
            w_scale: f16::from_le_bytes(self.d).to_f32(),
            sub_scale: [i32::from(self.scales[2 * j]), i32::from(self.scales[2 * j + 1])],
            w_min: 0.0,
            sub_min: [1, 1],
        }
    }
}
