//! The structs that cross the border to the kernels: kernels/types.cuh, field by field.

use std::marker::PhantomData;

use cudarc::driver::DeviceRepr;

/// An address in device memory, or none.
#[repr(transparent)]
pub struct Ptr<T> {
    address: u64,
    element: PhantomData<*mut T>,
}

impl<T> Ptr<T> {
    pub const NULL: Ptr<T> = Ptr::new(0);

    pub const fn new(address: u64) -> Ptr<T> {
        Ptr { address, element: PhantomData }
    }

    pub const fn address(self) -> u64 {
        self.address
    }

    pub const fn is_null(self) -> bool {
        self.address == 0
    }
}

impl<T> Clone for Ptr<T> {
    fn clone(&self) -> Ptr<T> {
        *self
    }
}

impl<T> Copy for Ptr<T> {}

// SAFETY: a number; nothing on the host ever follows it.
unsafe impl<T> Send for Ptr<T> {}

/// 32 activations of one row beside their int8 levels.
#[repr(C, align(8))]
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct XGroup {
    /// max|x| / 127; not finite if one of the values was not.
    pub scale: f32,
    /// Sums of the levels of both halves.
    pub sum: [i16; 2],
}

/// y = W x + bias, in one of the forms of forms.rs.
#[repr(C, align(8))]
#[derive(Clone, Copy)]
pub struct Matrix {
    pub quants: Ptr<u8>,
    pub high: Ptr<u8>,
    pub scales: Ptr<u8>,
    pub supers: Ptr<u8>,
    /// (rows), or null
    pub bias: Ptr<f32>,
    pub form: i32,
    pub rows: i32,
}

impl Matrix {
    /// In place of the ones that `Matrices` has no use for.
    pub const NONE: Matrix = Matrix {
        quants: Ptr::NULL,
        high: Ptr::NULL,
        scales: Ptr::NULL,
        supers: Ptr::NULL,
        bias: Ptr::NULL,
        form: 0,
        rows: 0,
    };
}

/// Up to three matrices that share an input; their outputs lie side by side.
#[repr(C, align(8))]
#[derive(Clone, Copy)]
pub struct Matrices {
    pub matrix: [Matrix; 3],
    pub count: i32,
    pub unused: i32,
}

/// Rows of activations: int8 groups, f32, or both.
#[repr(C, align(8))]
#[derive(Clone, Copy)]
pub struct Rows {
    /// (n, cols), or null where every reader is a float matrix
    pub q: Ptr<i8>,
    /// (n, cols / 32), or null with q
    pub groups: Ptr<XGroup>,
    /// (n, cols), or null where no reader is
    pub x: Ptr<f32>,
    pub cols: i32,
    pub unused: i32,
}

impl Rows {
    /// For kernels that write elsewhere.
    pub const NONE: Rows = Rows { q: Ptr::NULL, groups: Ptr::NULL, x: Ptr::NULL, cols: 0, unused: 0 };
}

/// One layer of the paged KV pool.
#[repr(C, align(8))]
#[derive(Clone, Copy)]
pub struct KvLayer {
    pub pool: Ptr<u8>,
    pub block_stride: i64,
    pub k_offset: i64,
    pub v_offset: i64,
    pub k_head_bytes: i32,
    pub v_head_bytes: i32,
    pub k_type: i32,
    pub v_type: i32,
}

/// A token of the batch.
#[repr(C, align(8))]
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Token {
    /// Row of the page table.
    pub sequence: i32,
    /// Tokens of the sequence before it.
    pub slot: i32,
}

/// The batch, in device memory.
#[repr(C, align(8))]
#[derive(Clone, Copy)]
pub struct Step {
    /// (n)
    pub tokens: Ptr<Token>,
    /// (sequences, max_pages)
    pub pages: Ptr<i32>,
    /// (n, head_dim / 2)
    pub cos: Ptr<f32>,
    pub sin: Ptr<f32>,
    pub max_pages: i32,
    pub unused: i32,
}

/// Sizes of the attention of a layer.
#[repr(C, align(8))]
#[derive(Clone, Copy, Debug)]
pub struct Heads {
    pub n_heads: i32,
    pub n_kv_heads: i32,
    pub head_dim: i32,
    /// 1 / sqrt(head_dim)
    pub scale: f32,
}

/// The likeliest token of a row of logits.
#[repr(C, align(8))]
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Best {
    pub id: i32,
    /// 0 if a logit was NaN or infinite.
    pub finite: i32,
}

/// Consecutive tokens of one sequence in the batch: what a block of `attention_prefill` takes.
#[repr(C, align(8))]
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Tile {
    pub first: i32,
    pub count: i32,
}

const _: () = {
    assert!(size_of::<XGroup>() == 8 && size_of::<Token>() == 8 && size_of::<Heads>() == 16);
    assert!(size_of::<Matrix>() == 48 && size_of::<Matrices>() == 152 && size_of::<Rows>() == 32);
    assert!(size_of::<KvLayer>() == 48 && size_of::<Step>() == 40);
};

macro_rules! passed_to_kernels {
    ($($name:ty),*) => { $(
        // SAFETY: repr(C) with the fields of kernels/types.cuh: numbers and device addresses.
        unsafe impl DeviceRepr for $name {}
    )* };
}
passed_to_kernels!(Best, Tile, XGroup, Matrix, Matrices, Rows, KvLayer, Token, Step, Heads);
// SAFETY: an address as kernels take it.
unsafe impl<T> DeviceRepr for Ptr<T> {}
