//! Quantized matrix products: eight rows in the lanes of two registers, groups in order, one accumulator per (row, token).
//!
//! One token (decode) reads the rows as they lie in the file: per group of 32 and row its elements are unpacked into two
//! registers and multiplied by two `sdot`, and 6 adds of pairs bring eight rows into the lanes. More tokens (prefill)
//! unpack a panel of 8 rows x up to 32 groups once and use it for all of them: per group and token 16 `sdot`, each of four
//! rows by four bytes that are taken from a lane. Both operands are signed, so nothing is biased.

#![expect(
    clippy::needless_range_loop,
    reason = "constant ranges unroll, and iterators over several arrays do not read better"
)]

use std::arch::aarch64::*;
use std::ops::Range;

use super::Ahead;
use super::blocks::*;
use super::dot::Dot;
use super::rows::{prefetch_line, widen_halfs};
use crate::backend::cpu::threads::ColumnBlock;
use crate::model::Matrix;
use crate::quant::activation::{BASE, Precision, QuantTile};
use crate::quant::{DType, Form, GROUP};

/// Rows per panel.
const ROWS: usize = 8;
/// Groups per panel chunk: 14 KB of elements and scales.
const CHUNK: usize = 32;
/// Tokens of a tile at once: the quads of four fill a register; their accumulators and integer sums sixteen.
const STRIP: usize = 4;

/// Eight rows in lanes.
type Floats = [float32x4_t; 2];
type Ints = [int32x4_t; 2];

/// `Kernels::matmul_quantized`.
///
/// # Safety
/// The CPU has D's instruction.
#[target_feature(enable = "neon")]
pub unsafe fn matmul_quantized<D: Dot>(
    w: &Matrix,
    rows: Range<usize>,
    x: &[QuantTile],
    next: &[u8],
    out: &mut ColumnBlock,
    column: usize,
) {
    assert!(rows.end <= w.rows && x.iter().all(|x| x.capacity() >= w.cols), "shapes");
    assert!(!x.is_empty(), "no tokens");
    // SAFETY: the shapes were checked above, each type is read by its own blocks; the instruction by the caller's promise.
    unsafe {
        macro_rules! run {
            ($blocks:ty) => {
                matmul::<D, $blocks>(w, rows, x, next, out, column)
            };
        }
        by_type!(w.dtype, run);
    }
}

#[target_feature(enable = "neon")]
unsafe fn matmul<D: Dot, B: Blocks>(
    w: &Matrix,
    rows: Range<usize>,
    x: &[QuantTile],
    next: &[u8],
    out: &mut ColumnBlock,
    column: usize,
) {
    let is_one_token = x.len() == 1 && x[0].width() == 1;
    let ahead = Ahead::new(w.rows_data(rows.clone()), next);
    let mut panel = (!is_one_token).then(|| Panel::new());
    for start in rows.clone().step_by(ROWS) {
        let n = ROWS.min(rows.end - start);
        let row = PanelRows::new(w, start, n, ahead);
        let columns = column + start - rows.start..column + start - rows.start + n;
        // SAFETY: `row` points to whole rows of `w`, whose type is B's.
        unsafe {
            match &mut panel {
                Some(panel) => row.times_many::<D, B>(x, panel, out, columns),
                None => {
                    let sums = match x[0].precision() {
                        Precision::Int8 => row.times_one::<D, B, 1>(&x[0]),
                        Precision::Int16 => row.times_one::<D, B, 2>(&x[0]),
                    };
                    store(sums, out.cells(0, columns));
                }
            }
        }
    }
}

/// Writes the lanes that stand for real rows.
#[inline]
#[target_feature(enable = "neon")]
fn store(lanes: Floats, cells: &mut [f32]) {
    let mut all = [0f32; ROWS];
    // SAFETY: two stores of four floats.
    unsafe {
        vst1q_f32(all.as_mut_ptr(), lanes[0]);
        vst1q_f32(all.as_mut_ptr().add(4), lanes[1]);
    }
    cells.copy_from_slice(&all[..cells.len()]);
}

#[inline]
#[target_feature(enable = "neon")]
fn load(cells: &[f32]) -> Floats {
    let mut all = [0f32; ROWS];
    all[..cells.len()].copy_from_slice(cells);
    floats(&all)
}

#[inline]
#[target_feature(enable = "neon")]
fn floats(all: &[f32; ROWS]) -> Floats {
    // SAFETY: two loads of four floats.
    unsafe { [vld1q_f32(all.as_ptr()), vld1q_f32(all.as_ptr().add(4))] }
}

#[inline]
#[target_feature(enable = "neon")]
fn ints(all: &[i32; ROWS]) -> Ints {
    // SAFETY: two loads of four integers.
    unsafe { [vld1q_s32(all.as_ptr()), vld1q_s32(all.as_ptr().add(4))] }
}

#[inline]
#[target_feature(enable = "neon")]
fn zero() -> Floats {
    [vdupq_n_f32(0.0); 2]
}

/// Scales of one group of eight rows, by `Form`. `w_min` has its sign turned.
#[derive(Clone, Copy)]
struct LaneScales {
    w_scale: Floats,
    w_min: Floats,
    scale: [Ints; 2],
    min: [Ints; 2],
}

const fn is_split<B: Blocks>() -> bool {
    matches!(B::FORM, Form::Split | Form::SplitMin)
}

const fn has_min<B: Blocks>() -> bool {
    matches!(B::FORM, Form::ScaleMin | Form::SplitMin)
}

/// Eight rows of a matrix; past the end the last row stands in, and its lanes are not stored.
struct PanelRows {
    rows: [*const u8; ROWS],
    groups: usize,
    ahead: Ahead,
}

impl PanelRows {
    fn new(w: &Matrix, start: usize, n: usize, ahead: Ahead) -> PanelRows {
        let rows = std::array::from_fn(|r| {
            let row = start + r.min(n - 1);
            w.rows_data(row..row + 1).as_ptr()
        });
        PanelRows { rows, groups: w.cols / GROUP, ahead }
    }

    /// The block of row `r` that holds group `g`, and the group's number in it.
    #[inline]
    unsafe fn block<B: Blocks>(&self, r: usize, g: usize) -> (*const u8, usize) {
        let per_block = B::DTYPE.block_elements() / GROUP;
        // SAFETY: `g` is below `groups`, so the block lies in the row.
        (unsafe { self.rows[r].add(g / per_block * B::BYTES) }, g % per_block)
    }

    #[inline]
    #[target_feature(enable = "neon")]
    unsafe fn lane_scales<B: Blocks>(&self, g: usize) -> LaneScales {
        let is_mxfp4 = matches!(B::DTYPE, DType::MXFP4);
        let (mut d, mut m) = ([0u16; ROWS], [0u16; ROWS]);
        let mut d32 = [0f32; ROWS];
        let (mut scale, mut min) = ([[0i32; ROWS]; 2], [[0i32; ROWS]; 2]);
        for r in 0..ROWS {
            // SAFETY: reads within the block of an existing group.
            unsafe {
                let (block, j) = self.block::<B>(r, g);
                if is_mxfp4 {
                    d32[r] = mxfp4_scale(block);
                } else {
                    d[r] = block.add(B::D).cast::<u16>().read_unaligned();
                }
                if has_min::<B>() {
                    m[r] = block.add(B::M).cast::<u16>().read_unaligned();
                }
                let scales = B::scales(block, j);
                for h in 0..2 {
                    scale[h][r] = scales.scale[h];
                    min[h][r] = scales.min[h];
                }
            }
        }
        let scale = [ints(&scale[0]), ints(&scale[1])];
        let min = [ints(&min[0]), ints(&min[1])];
        let mut w_scale = if is_mxfp4 { floats(&d32) } else { widen_halfs(&d) };
        let mut w_min = widen_halfs(&m);
        for h in 0..if B::SCALED { 2 } else { 0 } {
            // exact: 11 bits of f16 times 6
            w_scale[h] = vmulq_f32(w_scale[h], vcvtq_f32_s32(scale[0][h]));
            w_min[h] = vmulq_f32(w_min[h], vcvtq_f32_s32(min[0][h]));
        }
        // Q4_1 and Q5_1 add their minimum, the K types subtract it
        let adds = matches!(B::DTYPE, DType::Q4_1 | DType::Q5_1);
        let w_min = if adds { w_min } else { [vnegq_f32(w_min[0]), vnegq_f32(w_min[1])] };
        LaneScales { w_scale, w_min, scale, min }
    }

    /// Eight rows times one token.
    #[inline]
    #[target_feature(enable = "neon")]
    unsafe fn times_one<D: Dot, B: Blocks, const DIGITS: usize>(&self, x: &QuantTile) -> Floats {
        let mut acc = zero();
        for g in 0..self.groups {
            let none = [vdupq_n_s32(0); ROWS];
            // the second is used by split forms only
            let mut sums = [[none; 2]; DIGITS];
            // SAFETY: group `g` exists in every row and in `x`.
            let scales = unsafe {
                if g % 4 == 0 {
                    self.prefetch::<B>(g);
                }
                for r in 0..ROWS {
                    let (block, j) = self.block::<B>(r, g);
                    let w = B::quants(block, j);
                    for d in 0..DIGITS {
                        let x = x.q(g, d).as_ptr();
                        sums[d][0][r] = D::quads(sums[d][0][r], w[0], vld1q_s8(x));
                        let second = usize::from(is_split::<B>());
                        sums[d][second][r] = D::quads(sums[d][second][r], w[1], vld1q_s8(x.add(16)));
                    }
                }
                self.lane_scales::<B>(g)
            };
            let mut total = zero();
            for d in 0..DIGITS {
                let first = into_lanes(&sums[d][0]);
                let sum = if is_split::<B>() { fold(first, into_lanes(&sums[d][1]), &scales) } else { first };
                total = add_digit(d, total, sum);
            }
            let factors = Factors::new(x, g, 0);
            acc = match (is_split::<B>(), has_min::<B>()) {
                (false, false) => add_group::<false, false, 1>(total, &scales, &factors, 0, acc),
                (false, true) => add_group::<false, true, 1>(total, &scales, &factors, 0, acc),
                (true, false) => add_group::<true, false, 1>(total, &scales, &factors, 0, acc),
                (true, true) => add_group::<true, true, 1>(total, &scales, &factors, 0, acc),
            };
        }
        acc
    }

    /// Asks for the bytes that lie one prefetch distance after the next four groups of the panel.
    #[inline]
    fn prefetch<B: Blocks>(&self, g: usize) {
        let group_bytes = B::BYTES * GROUP / B::DTYPE.block_elements();
        let ahead = self.ahead.of(self.rows[0].wrapping_add(g * group_bytes * ROWS));
        for line in (0..4 * group_bytes * ROWS).step_by(64) {
            prefetch_line(ahead.wrapping_add(line));
        }
    }

    /// Eight rows times many tokens, chunk by chunk of groups; running sums rest in `out`.
    #[target_feature(enable = "neon")]
    unsafe fn times_many<D: Dot, B: Blocks>(
        &self,
        x: &[QuantTile],
        panel: &mut Panel,
        out: &mut ColumnBlock,
        columns: Range<usize>,
    ) {
        for first in (0..self.groups).step_by(CHUNK) {
            let groups = first..self.groups.min(first + CHUNK);
            // SAFETY: the groups exist in every row.
            unsafe { panel.unpack::<B>(self, groups.clone()) };
            let mut first_token = 0;
            for tile in x {
                for start in (0..tile.width()).step_by(STRIP) {
                    let n = STRIP.min(tile.width() - start);
                    let mut acc = [zero(); STRIP];
                    for t in 0..if first > 0 { n } else { 0 } {
                        acc[t] = load(out.cells(first_token + start + t, columns.clone()));
                    }
                    let part = Part { tile, first_token: start, groups: groups.clone() };
                    // SAFETY: the tile has these groups.
                    unsafe {
                        match tile.precision() {
                            Precision::Int8 => times_strip::<D, B, 1>(panel, &part, n, &mut acc),
                            Precision::Int16 => times_strip::<D, B, 2>(panel, &part, n, &mut acc),
                        }
                    }
                    for t in 0..n {
                        store(acc[t], out.cells(first_token + start + t, columns.clone()));
                    }
                }
                first_token += tile.width();
            }
        }
    }
}

/// Eight registers of four partial sums -> lane r holds the sum of register r.
#[inline]
#[target_feature(enable = "neon")]
fn into_lanes(s: &[int32x4_t; ROWS]) -> Ints {
    let a = vpaddq_s32(vpaddq_s32(s[0], s[1]), vpaddq_s32(s[2], s[3]));
    let b = vpaddq_s32(vpaddq_s32(s[4], s[5]), vpaddq_s32(s[6], s[7]));
    [a, b]
}

/// The sums over both halves of a group times their integer scales.
#[inline]
#[target_feature(enable = "neon")]
fn fold(first: Ints, second: Ints, w: &LaneScales) -> Ints {
    let mut sums = first;
    for h in 0..2 {
        sums[h] = vmlaq_s32(vmulq_s32(first[h], w.scale[0][h]), second[h], w.scale[1][h]);
    }
    sums
}

/// The sum of digit `d` behind those before it. Sums stay below 2^24, so that they are exact as floats.
#[inline]
#[target_feature(enable = "neon")]
fn add_digit(d: usize, total: Floats, sum: Ints) -> Floats {
    let mut next = total;
    for h in 0..2 {
        let sum = vcvtq_f32_s32(sum[h]);
        next[h] = if d == 0 { sum } else { vfmaq_n_f32(sum, total[h], BASE) };
    }
    next
}

/// What `N` tokens of a tile bring to a group beside their digits.
struct Factors<'a, const N: usize> {
    x_scale: &'a [f32; N],
    x_sum: &'a [f32; N],
    half_sums: [&'a [i32; N]; 2],
}

impl<const N: usize> Factors<'_, N> {
    #[inline(always)]
    fn new(x: &QuantTile, g: usize, first: usize) -> Factors<'_, N> {
        const WHY: &str = "the tile has these tokens";
        let half = |half: usize| x.half_sums(g, half)[first..].first_chunk().expect(WHY);
        Factors {
            x_scale: x.x_scale(g)[first..].first_chunk().expect(WHY),
            x_sum: x.x_sum(g)[first..].first_chunk().expect(WHY),
            half_sums: [half(0), half(1)],
        }
    }
}

/// One step of the contract's dot product, for token `t` of `x`.
#[inline]
#[target_feature(enable = "neon")]
fn add_group<const SPLIT: bool, const MIN: bool, const N: usize>(
    total: Floats,
    w: &LaneScales,
    x: &Factors<N>,
    t: usize,
    mut acc: Floats,
) -> Floats {
    let x_scale = x.x_scale[t];
    for h in 0..2 {
        acc[h] = vfmaq_f32(acc[h], total[h], vmulq_n_f32(w.w_scale[h], x_scale));
        if MIN {
            acc[h] = if SPLIT {
                let first = vmulq_n_s32(w.min[0][h], x.half_sums[0][t]);
                let min_sum = vmlaq_n_s32(first, w.min[1][h], x.half_sums[1][t]);
                vfmaq_f32(acc[h], w.w_min[h], vmulq_n_f32(vcvtq_f32_s32(min_sum), x_scale))
            } else {
                vfmaq_n_f32(acc[h], w.w_min[h], x.x_sum[t])
            };
        }
    }
    acc
}

/// Up to `CHUNK` groups of eight rows, unpacked.
struct Panel {
    /// [group][element / 4][row / 4], four bytes of four rows each
    q: [[[int8x16_t; 2]; 8]; CHUNK],
    scales: [LaneScales; CHUNK],
}

impl Panel {
    #[target_feature(enable = "neon")]
    fn new() -> Panel {
        let none = [vdupq_n_s32(0); 2];
        let scales = LaneScales { w_scale: zero(), w_min: zero(), scale: [none; 2], min: [none; 2] };
        Panel { q: [[[vdupq_n_s8(0); 2]; 8]; CHUNK], scales: [scales; CHUNK] }
    }

    #[inline]
    #[target_feature(enable = "neon")]
    unsafe fn unpack<B: Blocks>(&mut self, rows: &PanelRows, groups: Range<usize>) {
        for ((q, scales), g) in self.q.iter_mut().zip(&mut self.scales).zip(groups) {
            // SAFETY: group `g` exists in every row.
            unsafe {
                let mut v = [[vdupq_n_s8(0); 2]; ROWS];
                for (r, v) in v.iter_mut().enumerate() {
                    let (block, j) = rows.block::<B>(r, g);
                    *v = B::quants(block, j);
                }
                for half in 0..2 {
                    for four in 0..2 {
                        let row = |r: usize| v[4 * four + r][half];
                        let quads = transpose([row(0), row(1), row(2), row(3)]);
                        for (k, quad) in quads.into_iter().enumerate() {
                            q[4 * half + k][four] = quad;
                        }
                    }
                }
                *scales = rows.lane_scales::<B>(g);
            }
        }
    }
}

/// 4 x 4 transpose of quads of bytes: register k of the result holds quad k of every input.
#[inline]
#[target_feature(enable = "neon")]
fn transpose(v: [int8x16_t; 4]) -> [int8x16_t; 4] {
    let dwords = |i: usize| vreinterpretq_s32_s8(v[i]);
    let (even, odd) = (
        [vtrn1q_s32(dwords(0), dwords(1)), vtrn1q_s32(dwords(2), dwords(3))],
        [vtrn2q_s32(dwords(0), dwords(1)), vtrn2q_s32(dwords(2), dwords(3))],
    );
    let low = |v: [int32x4_t; 2]| vtrn1q_s64(vreinterpretq_s64_s32(v[0]), vreinterpretq_s64_s32(v[1]));
    let high = |v: [int32x4_t; 2]| vtrn2q_s64(vreinterpretq_s64_s32(v[0]), vreinterpretq_s64_s32(v[1]));
    let bytes = |v: int64x2_t| vreinterpretq_s8_s64(v);
    [bytes(low(even)), bytes(low(odd)), bytes(high(even)), bytes(high(odd))]
}

/// Groups of a tile, from some token on.
struct Part<'a> {
    tile: &'a QuantTile,
    first_token: usize,
    groups: Range<usize>,
}

/// Adds the products of the panel with `n` tokens of a tile to their accumulators. The panel holds groups of B's type.
///
/// # Safety
/// The tile has the part's groups in `DIGITS` digits; the CPU has D's instruction.
#[target_feature(enable = "neon")]
unsafe fn times_strip<D: Dot, B: Blocks, const DIGITS: usize>(
    panel: &Panel,
    x: &Part,
    n: usize,
    acc: &mut [Floats; STRIP],
) {
    // SAFETY: the caller's promise.
    unsafe {
        match (is_split::<B>(), has_min::<B>()) {
            (false, false) => times_n::<D, false, false, DIGITS>(panel, x, n, acc),
            (false, true) => times_n::<D, false, true, DIGITS>(panel, x, n, acc),
            (true, false) => times_n::<D, true, false, DIGITS>(panel, x, n, acc),
            (true, true) => times_n::<D, true, true, DIGITS>(panel, x, n, acc),
        }
    }
}

#[target_feature(enable = "neon")]
unsafe fn times_n<D: Dot, const SPLIT: bool, const MIN: bool, const DIGITS: usize>(
    panel: &Panel,
    x: &Part,
    n: usize,
    acc: &mut [Floats; STRIP],
) {
    // SAFETY: the caller's promise.
    unsafe {
        match n {
            1 => times::<D, SPLIT, MIN, DIGITS, 1>(panel, x, acc),
            2 => times::<D, SPLIT, MIN, DIGITS, 2>(panel, x, acc),
            3 => times::<D, SPLIT, MIN, DIGITS, 3>(panel, x, acc),
            _ => times::<D, SPLIT, MIN, DIGITS, STRIP>(panel, x, acc),
        }
    }
}

/// The one shape of all products of many tokens: `N` tokens, `DIGITS` digits, scales by form.
#[inline]
#[target_feature(enable = "neon")]
unsafe fn times<D: Dot, const SPLIT: bool, const MIN: bool, const DIGITS: usize, const N: usize>(
    panel: &Panel,
    x: &Part,
    acc: &mut [Floats; STRIP],
) {
    let (tile, first, width) = (x.tile, x.first_token, x.tile.width());
    for (i, g) in x.groups.clone().enumerate() {
        let scales = &panel.scales[i];
        let mut total = [zero(); N];
        for d in 0..DIGITS {
            let (q, w) = (&tile.q(g, d)[4 * first..], &panel.q[i]);
            // SAFETY: the quads of `N` tokens from `first` on; the instruction by the caller's promise.
            unsafe {
                if SPLIT {
                    let halves = [dot::<D, N>(w, q, width, 0..4), dot::<D, N>(w, q, width, 4..8)];
                    for t in 0..N {
                        total[t] = add_digit(d, total[t], fold(halves[0][t], halves[1][t], scales));
                    }
                } else {
                    let sums = dot::<D, N>(w, q, width, 0..8);
                    for t in 0..N {
                        total[t] = add_digit(d, total[t], sums[t]);
                    }
                }
            }
        }
        let factors = Factors::<N>::new(tile, g, first);
        for t in 0..N {
            acc[t] = add_group::<SPLIT, MIN, N>(total[t], scales, &factors, t, acc[t]);
        }
    }
}

/// Integer sums of the `quads` of a group for the first `N` tokens of `q`, in which those of `width` lie side by side.
#[inline]
#[target_feature(enable = "neon")]
unsafe fn dot<D: Dot, const N: usize>(
    w: &[[int8x16_t; 2]; 8],
    q: &[i8],
    width: usize,
    quads: Range<usize>,
) -> [Ints; N] {
    let mut sums = [[vdupq_n_s32(0); 2]; N];
    for k in quads {
        let mut x = [0i8; 4 * STRIP];
        x[..4 * N].copy_from_slice(&q[4 * k * width..][..4 * N]);
        for four in 0..2 {
            // SAFETY: sixteen bytes; the instruction by the caller's promise.
            unsafe {
                let x = vld1q_s8(x.as_ptr());
                for (t, sums) in sums.iter_mut().enumerate() {
                    let sum = sums[four];
                    sums[four] = match t {
                        0 => D::quads_by::<0>(sum, w[k][four], x),
                        1 => D::quads_by::<1>(sum, w[k][four], x),
                        2 => D::quads_by::<2>(sum, w[k][four], x),
                        _ => D::quads_by::<3>(sum, w[k][four], x),
                    };
                }
            }
        }
    }
    sums
}
