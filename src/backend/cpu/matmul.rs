//! Matrix products of a batch: one region for all matrices that share an input.

use super::Activations;
use super::simd::Kernels;
use super::threads::{ColumnBlock, Crew};
use crate::model::{Linear, Matrix};
use crate::quant::activation::{QuantTile, TILE};

/// Columns in whose multiples work is shared out: the widest panel of any table.
const STEP: usize = 16;

/// The input of matrix products: f32 rows and, when a quantized matrix will read them, their int8 form in tiles.
pub struct Input {
    activations: Activations,
    /// (tokens, cols) f32
    pub x: Vec<f32>,
    tiles: Vec<QuantTile>,
}

impl Input {
    pub fn new(activations: Activations, max_tokens: usize, max_cols: usize) -> Input {
        let tile = QuantTile::with_capacity(activations.precision(), max_cols);
        let tiles = vec![tile; max_tokens.div_ceil(TILE)];
        Input { activations, x: vec![0.0; tiles.len() * TILE * max_cols], tiles }
    }

    /// Bytes that `new` allocates.
    pub fn bytes(activations: Activations, max_tokens: usize, max_cols: usize) -> u64 {
        let tile = QuantTile::bytes(activations.precision(), max_cols);
        max_tokens.div_ceil(TILE) as u64 * ((4 * TILE * max_cols) as u64 + tile)
    }

    /// Whether a matrix reads the int8 form.
    fn is_quantized_for(&self, weight: &Matrix) -> bool {
        self.activations != Activations::F32 && weight.dtype.is_quantized()
    }

    /// Fills `n` rows of `cols` by `fill(token, row)` and quantizes them for `readers`.
    pub fn prepare(
        &mut self,
        crew: &Crew,
        kernels: &Kernels,
        (n, cols): (usize, usize),
        readers: &[&Linear],
        fill: impl Fn(usize, &mut [f32]) + Sync,
    ) {
        let quantized = readers.iter().any(|linear| self.is_quantized_for(&linear.weight));
        let n_tiles = n.div_ceil(TILE);
        let (x, tiles) = (&mut self.x[..n_tiles * TILE * cols], &mut self.tiles[..n_tiles]);
        crew.split_rows((x, TILE * cols), (tiles, 1), |_, range, x, tiles| {
            for ((i, rows), tile) in range.zip(x.chunks_mut(TILE * cols)).zip(tiles) {
                let width = TILE.min(n - i * TILE);
                tile.set_width(width);
                for (token, row) in rows.chunks_mut(cols).enumerate().take(width) {
                    fill(i * TILE + token, row);
                    if quantized {
                        (kernels.quantize)(row, tile, token);
                    }
                }
            }
        });
    }
}

/// out (n, sum of rows) = [W_0 x + b_0 | W_1 x + b_1 | ...] for the `n` prepared rows of `input`.
pub fn matmul(crew: &Crew, kernels: &Kernels, matrices: &[&Linear], input: &Input, n: usize, out: &mut [f32]) {
    let cols: usize = matrices.iter().map(|linear| linear.weight.rows).sum();
    crew.split_columns(&mut out[..n * cols], cols, STEP, |block| {
        let mut first = 0;
        for linear in matrices {
            let weight = &linear.weight;
            let (start, end) = (block.columns().start.max(first), block.columns().end.min(first + weight.rows));
            if start < end {
                multiply(kernels, weight, start - first..end - first, input, n, block, start);
                if let Some(bias) = &linear.bias {
                    for token in 0..n {
                        super::ops::add(block.cells(token, start..end), &bias[start - first..end - first]);
                    }
                }
            }
            first += weight.rows;
        }
    });
}

fn multiply(
    kernels: &Kernels,
    weight: &Matrix,
    rows: std::ops::Range<usize>,
    input: &Input,
    n: usize,
    block: &mut ColumnBlock,
    column: usize,
) {
    if input.is_quantized_for(weight) {
        (kernels.matmul_quantized)(weight, rows, &input.tiles[..n.div_ceil(TILE)], block, column);
    } else {
        (kernels.matmul_float)(weight, rows, &input.x[..n * weight.cols], block, column);
    }
}
