//! Tables of kernels, one per instruction set, chosen once at start. Every table gives the bits of `scalar`.

/// `$run!(B)` for the blocks B of a quantized type, under the names that they have in every table.
macro_rules! by_type {
    ($dtype:expr, $run:ident) => {
        match $dtype {
            DType::Q4_0 => $run!(Q4_0),
            DType::Q4_1 => $run!(Q4_1),
            DType::Q5_0 => $run!(Q5_0),
            DType::Q5_1 => $run!(Q5_1),
            DType::Q8_0 => $run!(Q8_0),
            DType::Q2_K => $run!(Q2K),
            DType::Q3_K => $run!(Q3K),
            DType::Q4_K => $run!(Q4K),
            DType::Q5_K => $run!(Q5K),
            DType::Q6_K => $run!(Q6K),
            DType::IQ4_NL => $run!(Iq4Nl),
            DType::IQ4_XS => $run!(Iq4Xs),
            DType::MXFP4 => $run!(Mxfp4),
            DType::F32 | DType::F16 | DType::BF16 => panic!("only quantized matrices come here"),
        }
    };
}

mod ahead;
#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
#[cfg(target_arch = "aarch64")]
mod neon;
mod peaks;
mod scalar;

use std::ops::Range;

use anyhow::{Result, bail};

use super::threads::ColumnBlock;
use crate::kv::layout::KvType;
use crate::model::Matrix;
use crate::quant::activation::QuantTile;

use ahead::Ahead;
pub use peaks::{Peaks, peaks};
pub use scalar::exp;

/// Consecutive tokens of a sequence that are scored together: a part of the contract. Scores of a query lie this far apart.
pub const SPAN_TOKENS: usize = 256;

/// Interleaved partial sums of float dot products: a part of the contract, not of a machine.
const LANES: usize = 16;

/// Which table to use (`--simd`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Simd {
    Scalar,
    Avx2,
    /// With VNNI.
    Avx512,
    /// Of AArch64, with `sdot` where the CPU has it.
    Neon,
}

impl Simd {
    pub const ALL: [Simd; 4] = [Simd::Scalar, Simd::Avx2, Simd::Avx512, Simd::Neon];

    pub const fn name(self) -> &'static str {
        match self {
            Simd::Scalar => "scalar",
            Simd::Avx2 => "avx2",
            Simd::Avx512 => "avx512",
            Simd::Neon => "neon",
        }
    }

    pub fn is_available(self) -> bool {
        self.kernels().is_some()
    }

    /// The table, if this CPU can run it.
    pub fn kernels(self) -> Option<&'static Kernels> {
        match self {
            Simd::Scalar => Some(&scalar::KERNELS),
            #[cfg(target_arch = "x86_64")]
            Simd::Avx2 => avx2::kernels(),
            #[cfg(target_arch = "x86_64")]
            Simd::Avx512 => avx512::kernels(),
            #[cfg(not(target_arch = "x86_64"))]
            Simd::Avx2 | Simd::Avx512 => None,
            #[cfg(target_arch = "aarch64")]
            Simd::Neon => neon::kernels(),
            #[cfg(not(target_arch = "aarch64"))]
            Simd::Neon => None,
        }
    }
}

/// The table asked for, or the best that this CPU runs.
pub(super) fn choose(asked: Option<Simd>) -> Result<&'static Kernels> {
    match asked {
        Some(simd) => match simd.kernels() {
            Some(kernels) => Ok(kernels),
            None => bail!("this CPU does not have the instructions of --simd {}", simd.name()),
        },
        None => Ok(Simd::ALL.iter().rev().find_map(|simd| simd.kernels()).expect("scalar runs everywhere")),
    }
}

/// The functions that differ by instruction set. Lengths are the caller's promise and are asserted inside.
pub struct Kernels {
    pub name: &'static str,
    /// (cols) f32 -> int8 groups of row `token` of a tile.
    pub quantize: fn(x: &[f32], tile: &mut QuantTile, token: usize),
    /// `rows` of a quantized matrix times the tokens of `x`: out[token][column..] = W[rows] x[token].
    pub matmul_quantized: MatmulQuantized,
    /// The same for F32, F16 and BF16 on `x` (tokens, cols) f32.
    pub matmul_float: fn(w: &Matrix, rows: Range<usize>, x: &[f32], out: &mut ColumnBlock, column: usize),
    /// Float dot product in sixteen lanes.
    pub dot: fn(a: &[f32], b: &[f32]) -> f32,
    /// Scores of the first `n` keys of a page: out[query * SPAN_TOKENS + i] = dot(query, k_rows[i]) * scale.
    pub scores: fn(&Queries<f32>, k_rows: &[f32], n: usize, scale: f32, out: &mut [f32]),
    /// The same on int8: (query . k_rows[i] as integers) * (q_scales[query] * k_scales[i]).
    pub scores_int8: ScoresInt8,
    /// scores -> exp(score - max) in place; (max, sum).
    pub softmax_span: fn(scores: &mut [f32]) -> (f32, f32),
    /// o[query] += p[query * SPAN_TOKENS + i] * v_rows[i] for the first `n` rows of a page, in token order; as many queries
    /// as `o` holds heads.
    pub accumulate: fn(p: &[f32], v_rows: &[f32], n: usize, head_dim: usize, o: &mut [f32]),
    /// p[i] *= scales[i] (f16), as many as `p` holds.
    pub scale: fn(p: &mut [f32], scales: &[u8]),
    /// Adds the (m, l, o) of the next span to the running ones.
    pub merge: Merge,
    /// gate = gate / (1 + exp(-gate)) * up
    pub silu_mul: fn(gate: &mut [f32], up: &[f32]),
    /// One head row -> its stored form and scale.
    pub encode: fn(KvType, row: &[f32], stored: &mut [u8], scale: &mut [u8]),
    /// Elements of stored head rows -> f32: the values of float types, the integers of int8 rows.
    pub widen: fn(KvType, stored: &[u8], rows: &mut [f32]),
    /// A head of q -> int8 with one scale, which is returned.
    pub quantize_head: fn(head: &[f32], q: &mut [i8]) -> f32,
    /// Asks for bytes that will be read soon.
    pub prefetch: fn(&[u8]),
}

/// `next`: what the same thread will read afterwards, to be asked for while the last rows are multiplied.
type MatmulQuantized =
    fn(w: &Matrix, rows: Range<usize>, x: &[QuantTile], next: &[u8], out: &mut ColumnBlock, column: usize);
type Merge = fn(ml: &mut (f32, f32), o: &mut [f32], span_ml: (f32, f32), span_o: &[f32]);
type ScoresInt8 = fn(&Queries<i8>, q_scales: &[f32], k_rows: &[u8], k_scales: &[u8], n: usize, out: &mut [f32]);

/// The query heads of one KV head for some tokens: the `heads` of a token follow each other, tokens are `stride` apart.
#[derive(Clone, Copy)]
pub struct Queries<'a, T> {
    pub q: &'a [T],
    pub stride: usize,
    pub tokens: usize,
    pub heads: usize,
    pub head_dim: usize,
}

impl<'a, T> Queries<'a, T> {
    /// Token by token, head by head.
    fn each(&self) -> impl Iterator<Item = &'a [T]> {
        let (q, stride, heads, head_dim) = (self.q, self.stride, self.heads, self.head_dim);
        (0..self.tokens).flat_map(move |token| q[token * stride..][..heads * head_dim].chunks_exact(head_dim))
    }
}

/// Rows of a float matrix, each turned into f32 once for all tokens.
fn float_rows(
    w: &Matrix,
    rows: Range<usize>,
    x: &[f32],
    out: &mut ColumnBlock,
    column: usize,
    dot: fn(&[f32], &[f32]) -> f32,
) {
    let mut weights = vec![0f32; w.cols];
    for (i, row) in rows.enumerate() {
        w.dequantize_row(row, &mut weights);
        for (token, x) in x.chunks_exact(w.cols).enumerate() {
            out.cells(token, column + i..column + i + 1)[0] = dot(&weights, x);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kv::layout::BLOCK_TOKENS;
    use crate::quant::DType;
    use crate::quant::activation::{Precision, TILE};

    const PRECISIONS: [Precision; 2] = [Precision::Int8, Precision::Int16];

    /// Numbers that do not repeat, from a linear congruence: the same on every machine.
    struct Numbers(u64);

    impl Numbers {
        fn next(&mut self) -> u64 {
            self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            self.0 >> 33
        }

        /// Between -1 and 1, times 2^(-exponents..exponents).
        fn floats(&mut self, n: usize, exponents: i32) -> Vec<f32> {
            let mut one = || {
                let mantissa = self.next() as f32 / (1u64 << 30) as f32 - 1.0;
                let power = (self.next() % (2 * exponents as u64 + 1)) as i32 - exponents;
                mantissa * 2f32.powi(power)
            };
            (0..n).map(|_| one()).collect()
        }
    }

    fn others() -> Vec<&'static Kernels> {
        Simd::ALL.into_iter().filter_map(Simd::kernels).filter(|kernels| kernels.name != "scalar").collect()
    }

    fn assert_bits(name: &str, got: &[f32], want: &[f32]) {
        let same = |(a, b): (&f32, &f32)| a.to_bits() == b.to_bits() || (a.is_nan() && b.is_nan());
        assert!(got.iter().zip(want).all(same), "{name}: {got:?} instead of {want:?}");
    }

    #[test]
    fn the_activation_quantizer_gives_the_bits_of_scalar_code() {
        let mut numbers = Numbers(1);
        for kernels in others() {
            for exponents in [0, 3, 40, 120] {
                let mut x = numbers.floats(32 * 9, exponents);
                x[32..64].fill(0.0);
                x[64] = f32::MAX;
                (x[96], x[130]) = (f32::NAN, f32::INFINITY);
                x[160..192].iter_mut().for_each(|x| *x = 1e-40);
                for (precision, width) in PRECISIONS.into_iter().flat_map(|p| [1, 2, 8].map(|width| (p, width))) {
                    let tile = QuantTile::with_capacity(precision, x.len());
                    let mut tiles = [tile.clone(), tile];
                    for (tile, kernels) in tiles.iter_mut().zip([kernels, &scalar::KERNELS]) {
                        tile.set_width(width);
                        (0..width).for_each(|token| (kernels.quantize)(&x, tile, token));
                    }
                    let [got, want] = &tiles;
                    for g in 0..9 {
                        assert_bits(kernels.name, got.x_scale(g), want.x_scale(g));
                        assert_bits(kernels.name, got.x_sum(g), want.x_sum(g));
                        // the values of a group whose scale is not finite are never used
                        if want.x_scale(g)[0].is_finite() {
                            for half in 0..2 {
                                assert_eq!(got.half_sums(g, half), want.half_sums(g, half));
                            }
                            for digit in 0..precision.digits() {
                                assert_eq!(got.q(g, digit), want.q(g, digit), "group {g}");
                                for half in 0..3 {
                                    assert_eq!(got.unbias(g, digit, half), want.unbias(g, digit, half));
                                }
                            }
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn float_kernels_give_the_bits_of_scalar_code_at_every_length() {
        let (mut numbers, plain) = (Numbers(2), &scalar::KERNELS);
        for kernels in others() {
            for n in (1..40).chain([64, 80, 128, 250, 256, 576]) {
                let (a, b) = (numbers.floats(n, 8), numbers.floats(n, 8));
                assert_bits("dot", &[(kernels.dot)(&a, &b)], &[(plain.dot)(&a, &b)]);

                let (mut got, mut want) = (a.clone(), a.clone());
                (kernels.silu_mul)(&mut got, &b);
                (plain.silu_mul)(&mut want, &b);
                assert_bits("silu_mul", &got, &want);

                let mut scores = numbers.floats(n, 6);
                if n % 5 == 0 {
                    scores[n / 2] = -200.0;
                }
                let (mut got, mut want) = (scores.clone(), scores);
                let sums = [(kernels.softmax_span)(&mut got), (plain.softmax_span)(&mut want)];
                assert_bits("softmax_span", &got, &want);
                assert_bits("softmax_span sums", &[sums[0].0, sums[0].1], &[sums[1].0, sums[1].1]);

                for kv_type in [KvType::F32, KvType::F16, KvType::Int8] {
                    let row = numbers.floats(n, 20);
                    let stored = |fill: u8| (vec![fill; kv_type.row_bytes(n)], vec![fill; kv_type.scale_bytes()]);
                    let (mut got, mut want) = (stored(0x55), stored(0xaa));
                    (kernels.encode)(kv_type, &row, &mut got.0, &mut got.1);
                    (plain.encode)(kv_type, &row, &mut want.0, &mut want.1);
                    assert_eq!(got, want, "encode {n} {kv_type:?}");
                    let (mut back, mut plain_back) = (vec![0.0; n], vec![1.0; n]);
                    (kernels.widen)(kv_type, &got.0, &mut back);
                    (plain.widen)(kv_type, &want.0, &mut plain_back);
                    assert_bits("widen", &back, &plain_back);
                }
            }
        }
    }

    #[test]
    fn attention_gives_the_bits_of_scalar_code_at_every_length() {
        let (mut numbers, plain) = (Numbers(4), &scalar::KERNELS);
        for kernels in others() {
            for (head_dim, heads, tokens) in [2, 16, 32, 48, 64, 80, 96, 128, 250, 320]
                .into_iter()
                .flat_map(|head_dim| [(1, 1), (3, 1), (4, 2), (5, 8)].map(|(heads, tokens)| (head_dim, heads, tokens)))
            {
                let queries = heads * tokens;
                let stride = (heads + 1) * head_dim;
                let float_rows = numbers.floats(BLOCK_TOKENS * head_dim, 4);
                let rows: Vec<u8> =
                    (0..BLOCK_TOKENS * head_dim).map(|_| (numbers.next() as i8).max(-127) as u8).collect();
                let k_scales: Vec<u8> = numbers
                    .floats(BLOCK_TOKENS, 6)
                    .iter()
                    .flat_map(|&s| half::f16::from_f32(s).to_le_bytes())
                    .collect();
                let q = numbers.floats(tokens * stride, 6);
                let (mut int8, mut plain_int8) = (vec![1i8; q.len()], vec![2i8; q.len()]);
                for ((head, q), plain_q) in
                    q.chunks(head_dim).zip(int8.chunks_mut(head_dim)).zip(plain_int8.chunks_mut(head_dim))
                {
                    let scale = (kernels.quantize_head)(head, q);
                    assert_bits("quantize_head", &[scale], &[(plain.quantize_head)(head, plain_q)]);
                    assert_eq!(q, plain_q);
                }
                let q_scales = numbers.floats(queries, 3);
                let (o, p) = (numbers.floats(queries * head_dim, 3), numbers.floats(queries * SPAN_TOKENS, 3));
                for n in 0..=BLOCK_TOKENS {
                    let run = |kernels: &Kernels| {
                        let mut out = [vec![7.0; queries * SPAN_TOKENS], vec![7.0; queries * SPAN_TOKENS], o.clone()];
                        let floats = Queries { q: &q, stride, tokens, heads, head_dim };
                        (kernels.scores)(&floats, &float_rows, n, 0.125, &mut out[0]);
                        let int8 = Queries { q: &int8, stride, tokens, heads, head_dim };
                        (kernels.scores_int8)(&int8, &q_scales, &rows, &k_scales, n, &mut out[1]);
                        (kernels.scale)(&mut out[1][..n], &k_scales);
                        (kernels.accumulate)(&p, &float_rows, n, head_dim, &mut out[2]);
                        let mut ml = (q_scales[0], 2.0);
                        (kernels.merge)(&mut ml, &mut out[2], (q_scales[queries - 1], 3.0), &o);
                        let [float_scores, int8_scores, o] = out;
                        [float_scores, int8_scores, o, vec![ml.0, ml.1]]
                    };
                    for (got, want) in run(kernels).iter().zip(run(plain)) {
                        assert_bits(&format!("{} {head_dim} {heads} {tokens} {n}", kernels.name), got, &want);
                    }
                }
            }
        }
    }

    /// Every type, odd numbers of rows and tokens, scales of any bits: subnormal, huge, infinite, NaN.
    #[test]
    fn quantized_products_give_the_bits_of_scalar_code() {
        let mut numbers = Numbers(3);
        let team = crate::backend::cpu::threads::Team::new(1).unwrap();
        for dtype in DType::ALL.into_iter().filter(|dtype| dtype.is_quantized()) {
            let sizes =
                [(1, 1, 1), (8, 2, 1), (37, 3, 1), (9, 2, 2), (24, 1, 5), (3, 10, 11), (35, 5, 23), (16, 66, 3)];
            for ((rows, blocks, tokens), precision) in sizes.into_iter().flat_map(|s| PRECISIONS.map(|p| (s, p))) {
                let cols = (blocks * dtype.block_elements()).max(64);
                let n_bytes = rows * dtype.row_bytes(cols as u64).unwrap() as usize;
                let bytes: Vec<u8> = (0..n_bytes).map(|_| numbers.next() as u8).collect();
                let matrix = Matrix::in_memory(dtype, rows, cols, &bytes);
                let mut x = vec![];
                for first in (0..tokens).step_by(TILE) {
                    let mut tile = QuantTile::with_capacity(precision, cols);
                    tile.set_width(TILE.min(tokens - first));
                    (0..tile.width()).for_each(|token| tile.quantize(token, &numbers.floats(cols, 6)));
                    x.push(tile);
                }
                let run = |kernels: &Kernels| {
                    let mut out = vec![7.0; tokens * (rows + 2)];
                    team.run(|crew| {
                        crew.split_columns(&mut out, rows + 2, 1, |block| {
                            (kernels.matmul_quantized)(&matrix, 0..rows, &x, &[], block, 1);
                        });
                    });
                    out
                };
                let want = run(&scalar::KERNELS);
                for kernels in others() {
                    let name = format!("{} {} {rows}x{cols} {tokens} {precision:?}", kernels.name, dtype.name());
                    assert_bits(&name, &run(kernels), &want);
                }
            }
        }
    }

    #[test]
    fn softmax_lets_nan_through() {
        for kernels in others().into_iter().chain([&scalar::KERNELS]) {
            for at in [0, 7, 8, 18] {
                let mut scores = vec![1.0; 19];
                scores[at] = f32::NAN;
                assert!((kernels.softmax_span)(&mut scores).1.is_nan(), "{} at {at}", kernels.name);
            }
        }
    }
}
