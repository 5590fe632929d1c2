//! The kernels of matrix products: one function a launch. Shapes and costs stand above the kernels in kernels/matvec.cu and
//! kernels/matmul.cu.

use anyhow::Result;

use super::driver::{Device, Kernel, blocks};
use super::forms::Form;
use super::params::{Matrices, Matrix, Ptr, Rows};

/// Rows that a warp of `matvec` takes, and pairs of rows of gate and up that a block takes.
const WARP_ROWS: usize = 2;
const PAIRS: usize = 32;
/// Threads of a block. Small blocks leave less of the device idle at the end; those of gate and up are large where all of
/// them fit at once, since each works for several turns.
const THREADS: usize = 128;
const MOST_THREADS: usize = 256;
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
        let block_rows = THREADS / 32 * WARP_ROWS;
        let row_blocks = used.iter().map(|matrix| (matrix.rows as usize).div_ceil(block_rows)).sum();
        self.decode(device, matrices, input, (out, stride), &Rows::NONE, (row_blocks, THREADS), n)
    }

    /// out = silu(gate x) * (up x), for the tokens of a decode step.
    pub fn gate_up(&self, device: &Device, gate_up: &Matrices, input: &Rows, out: &Rows, n: usize) -> Result<()> {
        assert!(gate_up.count == 2 && gate_up.matrix[0].rows == gate_up.matrix[1].rows, "gate and up");
        let row_blocks = (gate_up.matrix[0].rows as usize).div_ceil(PAIRS);
        let (_, tokens, resident_threads) = self.decode_kernel(n);
        let fit =
            |threads| row_blocks * n.div_ceil(tokens) <= device.info.multiprocessors * (resident_threads / threads);
        let threads = if fit(THREADS) && !fit(MOST_THREADS) { THREADS } else { MOST_THREADS };
        self.decode(device, gate_up, input, (Ptr::NULL, 0), out, (row_blocks, threads), n)
    }

    #[expect(clippy::too_many_arguments, reason = "those of the kernel, and its grid")]
    fn decode(
        &self,
        device: &Device,
        matrices: &Matrices,
        input: &Rows,
        (out, stride): (Ptr<f32>, usize),
        fused: &Rows,
        (row_blocks, threads): (usize, usize),
        n: usize,
    ) -> Result<()> {
        let (kernel, tokens, _) = self.decode_kernel(n);
        let grid = ((row_blocks * n.div_ceil(tokens)) as u32, 1, 1);
        let args = (*matrices, *input, out, stride as i32, *fused, n as i32);
        // SAFETY: the arguments of `matvec_1` and `matvec_4`; `input` and the outputs have `n` rows, as their owner says.
        unsafe { device.launch(kernel, blocks(grid, threads as u32, 0), &args) }
    }

    /// The kernel for `n` tokens, how many of them a block takes, and for how many threads a multiprocessor has registers.
    fn decode_kernel(&self, n: usize) -> (&Kernel, usize, usize) {
        if n == 1 { (&self.matvec_1, 1, 768) } else { (&self.matvec_4, 4, 512) }
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
