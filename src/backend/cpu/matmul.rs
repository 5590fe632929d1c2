//! Matrix products of a batch: one region for all matrices that share an input.

use std::ops::Range;

use super::Activations;
use super::simd::Kernels;
use super::threads::Crew;
use crate::model::{Linear, Matrix};
use crate::quant::GROUP;
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
    pub fn is_quantized_for(&self, weight: &Matrix) -> bool {
        self.activations != Activations::F32 && weight.dtype.is_quantized()
    }

    /// (n, cols) int8 levels and (n, cols / 32) scales of the prepared rows, for those who look.
    pub fn levels(&self, n: usize, cols: usize) -> (Vec<i8>, Vec<f32>) {
        let (mut levels, mut scales) = (Vec::with_capacity(n * cols), Vec::with_capacity(n * cols / GROUP));
        for token in 0..n {
            let tile = &self.tiles[token / TILE];
            for g in 0..cols / GROUP {
                levels.extend(tile.group(g, 0, token % TILE));
                scales.push(tile.x_scale(g)[token % TILE]);
            }
        }
        (levels, scales)
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

/// out (n, sum of rows) = [W_0 x + b_0 | W_1 x + b_1 | ...] for the `n` prepared rows of `input`. `after`: the matrices of
/// the region that follows, whose first bytes are asked for in time.
pub fn matmul(
    crew: &Crew,
    kernels: &Kernels,
    matrices: &[&Linear],
    after: &[&Linear],
    input: &Input,
    n: usize,
    out: &mut [f32],
) {
    let columns_of = |matrices: &[&Linear]| matrices.iter().map(|linear| linear.weight.rows).sum::<usize>();
    let (cols, after_cols) = (columns_of(matrices), columns_of(after));
    crew.split_columns(&mut out[..n * cols], cols, STEP, |block| {
        let own = block.columns();
        let after = parts(after, block.share_of(after_cols, STEP));
        let mut later = parts(matrices, own.clone()).skip(1).chain(after);
        for (linear, rows, column) in parts(matrices, own) {
            let next = later.next().map_or(&[][..], |(linear, rows, _)| linear.weight.rows_data(rows));
            let (weight, columns) = (&linear.weight, column..column + rows.len());
            if input.is_quantized_for(weight) {
                let tiles = &input.tiles[..n.div_ceil(TILE)];
                (kernels.matmul_quantized)(weight, rows.clone(), tiles, next, block, column);
            } else {
                (kernels.matmul_float)(weight, rows.clone(), &input.x[..n * weight.cols], block, column);
            }
            if let Some(bias) = &linear.bias {
                (0..n).for_each(|token| super::ops::add(block.cells(token, columns.clone()), &bias[rows.clone()]));
            }
        }
    });
}

/// What of each matrix lies in `columns` of their outputs side by side: the matrix, its rows, their first column.
fn parts<'a>(
    matrices: &'a [&'a Linear],
    columns: Range<usize>,
) -> impl Iterator<Item = (&'a Linear, Range<usize>, usize)> {
    let mut first = 0;
    matrices.iter().filter_map(move |linear| {
        let at = first;
        first += linear.weight.rows;
        let (start, end) = (columns.start.max(at), columns.end.min(first));
        (start < end).then(|| (*linear, start - at..end - at, start))
    })
}
