//! ggml element types: the table of sizes and names, and the one view that all quantized types share.
//!
//! Whatever its layout, a quantized row is read as groups of 32 elements (`Group`). The scalar kernels, the reference
//! dequantization and the tests are written over groups; SIMD kernels load the same groups their own way and must agree.

pub mod activation;
mod iq;
mod k;
mod legacy;

use half::{bf16, f16};

pub use iq::{IQ4_VALUES, MXFP4_VALUES, e8m0_half, scale_iq4xs};
pub use k::{scale_min, scale_q3};

/// Elements per group: the unit in which activations are quantized and integer dot products are summed.
pub const GROUP: usize = 32;

/// Element types that sayfa computes with. Ids and sizes are ggml's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[allow(non_camel_case_types)]
pub enum DType {
    F32,
    F16,
    BF16,
    Q4_0,
    Q4_1,
    Q5_0,
    Q5_1,
    Q8_0,
    Q2_K,
    Q3_K,
    Q4_K,
    Q5_K,
    Q6_K,
    IQ4_NL,
    IQ4_XS,
    MXFP4,
}

impl DType {
    pub const ALL: [DType; 16] = [
        DType::F32,
        DType::F16,
        DType::BF16,
        DType::Q4_0,
        DType::Q4_1,
        DType::Q5_0,
        DType::Q5_1,
        DType::Q8_0,
        DType::Q2_K,
        DType::Q3_K,
        DType::Q4_K,
        DType::Q5_K,
        DType::Q6_K,
        DType::IQ4_NL,
        DType::IQ4_XS,
        DType::MXFP4,
    ];

    /// (ggml id, name, elements per block, bytes per block)
    const fn row(self) -> (u32, &'static str, usize, usize) {
        match self {
            DType::F32 => (0, "F32", 1, 4),
            DType::F16 => (1, "F16", 1, 2),
            DType::BF16 => (30, "BF16", 1, 2),
            DType::Q4_0 => (2, "Q4_0", 32, 18),
            DType::Q4_1 => (3, "Q4_1", 32, 20),
            DType::Q5_0 => (6, "Q5_0", 32, 22),
            DType::Q5_1 => (7, "Q5_1", 32, 24),
            DType::Q8_0 => (8, "Q8_0", 32, 34),
            DType::Q2_K => (10, "Q2_K", 256, 84),
            DType::Q3_K => (11, "Q3_K", 256, 110),
            DType::Q4_K => (12, "Q4_K", 256, 144),
            DType::Q5_K => (13, "Q5_K", 256, 176),
            DType::Q6_K => (14, "Q6_K", 256, 210),
            DType::IQ4_NL => (20, "IQ4_NL", 32, 18),
            DType::IQ4_XS => (23, "IQ4_XS", 256, 136),
            DType::MXFP4 => (39, "MXFP4", 32, 17),
        }
    }

    /// The type of a ggml id, if sayfa computes with it.
    pub fn from_id(id: u32) -> Option<DType> {
        DType::ALL.into_iter().find(|t| t.id() == id)
    }

    pub const fn id(self) -> u32 {
        self.row().0
    }

    pub const fn name(self) -> &'static str {
        self.row().1
    }

    /// Elements per block: 1 for floats, 32 or 256 for quantized types.
    pub const fn block_elements(self) -> usize {
        self.row().2
    }

    pub const fn block_bytes(self) -> usize {
        self.row().3
    }

    pub const fn is_quantized(self) -> bool {
        self.block_elements() > 1
    }

    /// Bytes of a row; `None` when `elements` is not a whole number of blocks or the size does not fit.
    pub fn row_bytes(self, elements: u64) -> Option<u64> {
        let block = self.block_elements() as u64;
        if !elements.is_multiple_of(block) {
            return None;
        }
        (elements / block).checked_mul(self.block_bytes() as u64)
    }
}

/// ggml's name of a type id that sayfa does not compute with, for error messages.
pub fn unsupported_name(id: u32) -> &'static str {
    match id {
        4 => "Q4_2 (removed)",
        5 => "Q4_3 (removed)",
        9 => "Q8_1",
        15 => "Q8_K",
        16 => "IQ2_XXS",
        17 => "IQ2_XS",
        18 => "IQ3_XXS",
        19 => "IQ1_S",
        21 => "IQ3_S",
        22 => "IQ2_S",
        24 => "I8",
        25 => "I16",
        26 => "I32",
        27 => "I64",
        28 => "F64",
        29 => "IQ1_M",
        31 => "Q4_0_4_4 (removed)",
        32 => "Q4_0_4_8 (removed)",
        33 => "Q4_0_8_8 (removed)",
        34 => "TQ1_0",
        35 => "TQ2_0",
        36 => "IQ4_NL_4_4 (removed)",
        37 => "IQ4_NL_4_8 (removed)",
        38 => "IQ4_NL_8_8 (removed)",
        40 => "NVFP4",
        _ => "unknown",
    }
}

/// How the scales of a group enter the dot product (see "Quantized matmul" in the arithmetic contract).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// One scale per 32 elements.
    Scale,
    /// One scale and one minimum per 32 elements.
    ScaleMin,
    /// An integer scale per 16 elements, folded into the integer sum.
    Split,
    /// The same with an integer minimum per 16 elements.
    SplitMin,
}

impl DType {
    /// `None` for floats.
    pub const fn form(self) -> Option<Form> {
        match self {
            DType::F32 | DType::F16 | DType::BF16 => None,
            DType::Q4_0 | DType::Q5_0 | DType::Q8_0 | DType::IQ4_NL | DType::IQ4_XS | DType::MXFP4 => Some(Form::Scale),
            DType::Q4_1 | DType::Q5_1 | DType::Q4_K | DType::Q5_K => Some(Form::ScaleMin),
            DType::Q3_K | DType::Q6_K => Some(Form::Split),
            DType::Q2_K => Some(Form::SplitMin),
        }
    }
}

/// 32 consecutive elements of a quantized row. Element i stands for
/// `w_scale * sub_scale[i / 16] * q[i] - w_min * sub_min[i / 16]`; the sub-scales are 1 where a type has none.
#[derive(Clone, Debug, PartialEq)]
pub struct Group {
    pub q: [i8; GROUP],
    pub w_scale: f32,
    pub sub_scale: [i32; 2],
    pub w_min: f32,
    pub sub_min: [i32; 2],
}

impl Group {
    /// A group with one scale and one minimum (0 where the type has none).
    fn with_scale(q: [i8; GROUP], w_scale: f32, w_min: f32) -> Group {
        Group { q, w_scale, sub_scale: [1, 1], w_min, sub_min: [1, 1] }
    }
}

/// A quantization block as it lies in the file: byte arrays only, so that it has alignment 1 and any bit pattern is valid.
///
/// # Safety
/// The type must be `repr(C)` and made of byte arrays alone.
unsafe trait Block: Sized {
    const DTYPE: DType;
    /// Group `j` of the block.
    fn group(&self, j: usize) -> Group;
}

/// The block of `row` that holds group `g`, and the group's number in it.
fn group_of<B: Block>(row: &[u8], g: usize) -> Group {
    const { assert!(size_of::<B>() == B::DTYPE.block_bytes() && align_of::<B>() == 1) };
    let groups_per_block = B::DTYPE.block_elements() / GROUP;
    let start = g / groups_per_block * size_of::<B>();
    let bytes = &row[start..start + size_of::<B>()];
    // SAFETY: `bytes` is exactly one B long, B has alignment 1 and is valid for any bytes (trait contract).
    let block = unsafe { &*bytes.as_ptr().cast::<B>() };
    block.group(g % groups_per_block)
}

/// Group `g` of a row of a quantized type. The plain path: every SIMD kernel must agree with it.
pub fn group(dtype: DType, row: &[u8], g: usize) -> Group {
    match dtype {
        DType::Q4_0 => group_of::<legacy::BlockQ4_0>(row, g),
        DType::Q4_1 => group_of::<legacy::BlockQ4_1>(row, g),
        DType::Q5_0 => group_of::<legacy::BlockQ5_0>(row, g),
        DType::Q5_1 => group_of::<legacy::BlockQ5_1>(row, g),
        DType::Q8_0 => group_of::<legacy::BlockQ8_0>(row, g),
        DType::Q2_K => group_of::<k::BlockQ2K>(row, g),
        DType::Q3_K => group_of::<k::BlockQ3K>(row, g),
        DType::Q4_K => group_of::<k::BlockQ4K>(row, g),
        DType::Q5_K => group_of::<k::BlockQ5K>(row, g),
        DType::Q6_K => group_of::<k::BlockQ6K>(row, g),
        DType::IQ4_NL => group_of::<iq::BlockIQ4NL>(row, g),
        DType::IQ4_XS => group_of::<iq::BlockIQ4XS>(row, g),
        DType::MXFP4 => group_of::<iq::BlockMXFP4>(row, g),
        DType::F32 | DType::F16 | DType::BF16 => panic!("{} rows have no groups", dtype.name()),
    }
}

/// One row -> f32, in ggml's order of operations: (scale * sub_scale) * q - (min * sub_min).
pub fn dequantize_row(dtype: DType, row: &[u8], out: &mut [f32]) {
    assert_eq!(dtype.row_bytes(out.len() as u64), Some(row.len() as u64), "row of {} elements", out.len());
    match dtype {
        DType::F32 => {
            for (x, b) in out.iter_mut().zip(row.as_chunks::<4>().0) {
                *x = f32::from_le_bytes(*b);
            }
        }
        DType::F16 => {
            for (x, b) in out.iter_mut().zip(row.as_chunks::<2>().0) {
                *x = f16::from_le_bytes(*b).to_f32();
            }
        }
        DType::BF16 => {
            for (x, b) in out.iter_mut().zip(row.as_chunks::<2>().0) {
                *x = bf16::from_le_bytes(*b).to_f32();
            }
        }
        _ => {
            for (g, out) in out.chunks_exact_mut(GROUP).enumerate() {
                let group = group(dtype, row, g);
                for (i, x) in out.iter_mut().enumerate() {
                    let scale = group.w_scale * group.sub_scale[i / 16] as f32;
                    *x = scale * f32::from(group.q[i]) - group.w_min * group.sub_min[i / 16] as f32;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn table_matches_ggml_sizes() {
        // bits per weight as published for each type
        let bits = |t: DType| t.block_bytes() as f64 * 8.0 / t.block_elements() as f64;
        let expected = [32.0, 16.0, 16.0, 4.5, 5.0, 5.5, 6.0, 8.5, 2.625, 3.4375, 4.5, 5.5, 6.5625, 4.5, 4.25, 4.25];
        for (t, want) in DType::ALL.into_iter().zip(expected) {
            assert_eq!(bits(t), want, "{}", t.name());
            assert_eq!(DType::from_id(t.id()), Some(t));
        }
        assert_eq!(DType::from_id(4), None);
        assert_eq!(DType::Q4_K.row_bytes(576), None);
        assert_eq!(DType::Q4_1.row_bytes(576), Some(360));
        assert_eq!(DType::F32.row_bytes(u64::MAX), None);
    }

    #[test]
    fn hand_made_blocks_dequantize() {
        let mut q4_1 = vec![0u8; 20];
        q4_1[0..2].copy_from_slice(&f16::from_f32(0.5).to_le_bytes());
        q4_1[2..4].copy_from_slice(&f16::from_f32(-1.0).to_le_bytes());
        q4_1[4] = 0xf3; // element 0 is 3, element 16 is 15
        let mut out = [0f32; 32];
        dequantize_row(DType::Q4_1, &q4_1, &mut out);
        assert_eq!((out[0], out[16], out[1]), (0.5, 6.5, -1.0));

        let mut q5_0 = vec![0u8; 22];
        q5_0[0..2].copy_from_slice(&f16::from_f32(2.0).to_le_bytes());
        q5_0[2..6].copy_from_slice(&(1u32 | 1 << 17).to_le_bytes()); // fifth bits of elements 0 and 17
        dequantize_row(DType::Q5_0, &q5_0, &mut out);
        assert_eq!((out[0], out[1], out[17]), (0.0, -32.0, 0.0));

        let mut mxfp4 = vec![0u8; 17];
        mxfp4[0] = 127; // 2^(127-128) on doubled values
        mxfp4[1] = 0x9f; // low nibble 15 -> -12, high nibble 9 -> -1
        dequantize_row(DType::MXFP4, &mxfp4, &mut out);
        assert_eq!((out[0], out[16]), (-6.0, -0.5));

        let mut q6 = vec![0u8; 210];
        q6[208..210].copy_from_slice(&f16::from_f32(1.0).to_le_bytes());
        q6[192 + 15] = (-3i8) as u8; // last sub-scale: elements 240..256
        q6[127] = 0xf0; // high nibble: element 255, low four bits 15
        q6[191] = 0xc0; // its high two bits
        let mut out = [0f32; 256];
        dequantize_row(DType::Q6_K, &q6, &mut out);
        assert_eq!((out[255], out[254], out[0]), (-93.0, 96.0, 0.0));
    }
}
