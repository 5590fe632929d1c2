//! ggml element types: sizes and names here, block layouts and reference dequantization in the files beside.

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
        if elements % block != 0 {
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
