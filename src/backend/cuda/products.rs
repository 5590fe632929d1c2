//! The kernels of matrix products: one function a launch. Shapes and costs stand above the kernels in kernels/matvec.cu and
//! kernels/matmul.cu.

use anyhow::Result;

use super::driver::{Device, Kernel, blocks};
use super::forms::Form;
use super::params::{Matrices, Matrix, Ptr, Rows};

/// Rows of a matrix, and pairs of rows of gate and up, that a block of `matvec` takes.
const MATVEC_ROWS: usize = 16;
const PAIRS: usize = 32;
/// Rows and tokens of a tile of `matmul`.
const TILE: usize = 64;
const SMALL_TILE: usize = 16;

pub struct Products {
    matvec_1: Kernel,
    matvec_4: Kernel,
    silu: Kernel,
    matmul_16: Kernel,
    matmul_64: Kernel,
    matmul_float: Kernel,
}

impl Products {
    pub fn new(device: &Device) -> Result<Products> {
        Ok(Products {
            matvec_1: device.kernel("matvec_1")?,
            matvec_4: device.kernel("matvec_4")?,
            silu: device.kernel("silu")?,
            matmul_16: device.kernel("matmul_16")?,
            matmul_64: device.kernel("matmul_64")?,
            matmul_float: device.kernel("matmul_float")?,
        })
    }

    /// out (n, stride) = the products of matrices side by side, for the tokens of a decode step.
    pub fn matvec(
        &self,
        device: &Device,
        matrices: &Matrices,
        input: &Rows,
        (out, stride): (Ptr<f32>, usize),
        n: usize,
    ) -> Result<()> {
        let used = &matrices.matrix[..matrices.count as usize];
        let row_blocks = used.iter().map(|matrix| (matrix.rows as usize).div_ceil(MATVEC_ROWS)).sum();
        self.decode(device, matrices, input, (out, stride), &Rows::NONE, row_blocks, n)
    }

    /// out = silu(gate x) * (up x), for the tokens of a decode step.
    pub fn gate_up(&self, device: &Device, gate_up: &Matrices, input: &Rows, out: &Rows, n: usize) -> Result<()> {
        assert!(gate_up.count == 2 && gate_up.matrix[0].rows == gate_up.matrix[1].rows, "gate and up");
        let row_blocks = (gate_up.matrix[0].rows as usize).div_ceil(PAIRS);
        self.decode(device, gate_up, input, (Ptr::NULL, 0), out, row_blocks, n)
    }

    #[expect(clippy::too_many_arguments, reason = "those of the kernel, and its grid")]
    fn decode(
        &self,
        device: &Device,
        matrices: &Matrices,
        input: &Rows,
        (out, stride): (Ptr<f32>, usize),
        fused: &Rows,
        row_blocks: usize,
        n: usize,
    ) -> Result<()> {
        let (kernel, tokens) = if n == 1 { (&self.matvec_1, 1) } else { (&self.matvec_4, 4) };
        let grid = ((row_blocks * n.div_ceil(tokens)) as u32, 1, 1);
        let args = (*matrices, *input, out, stride as i32, *fused, n as i32);
        // SAFETY: the arguments of `matvec_1` and `matvec_4`; `input` and the outputs have `n` rows, as their owner says.
        unsafe { device.launch(kernel, blocks(grid, 256, 0), &args) }
    }

    /// out (n, hidden) = silu(gate) * up of rows of gate and up side by side.
    pub fn silu(&self, device: &Device, gate_up: Ptr<f32>, hidden: usize, out: &Rows, n: usize) -> Result<()> {
        let grid = (hidden.div_ceil(32) as u32, n as u32, 1);
        let args = (gate_up, hidden as i32, *out);
        // SAFETY: the arguments of `silu`; `gate_up` has n rows of 2 * hidden, `out` n of hidden.
        unsafe { device.launch(&self.silu, blocks(grid, 32, 0), &args) }
    }

    /// out = W x + bias for the tokens of a prefill; `out` is the matrix's first column in rows of `stride`.
    pub fn matmul(
        &self,
        device: &Device,
        matrix: &Matrix,
        input: &Rows,
        (out, stride): (Ptr<f32>, usize),
        n: usize,
    ) -> Result<()> {
        let (kernel, tokens, threads) = if Form::is_float(matrix.form) {
            (&self.matmul_float, TILE, 256)
        } else if n <= SMALL_TILE {
            (&self.matmul_16, SMALL_TILE, 256)
        } else {
            (&self.matmul_64, TILE, 128)
        };
        let grid = (n.div_ceil(tokens) as u32, (matrix.rows as usize).div_ceil(TILE) as u32, 1);
        let args = (*matrix, *input, out, stride as i32, n as i32);
        // SAFETY: the arguments of the three kernels; `input` has n rows in the form that the matrix reads, `out` room for n.
        unsafe { device.launch(kernel, blocks(grid, threads, 0), &args) }
    }
}
