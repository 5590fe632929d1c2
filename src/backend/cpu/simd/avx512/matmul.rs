//! Quantized matrix products with VNNI: sixteen rows in the lanes, groups in order, one accumulator per (row, token).
//!
//! One token (decode): per group of 32 x 16 rows about 45 operations on the bytes as they lie in the file (16 loads, 8
//! multiply-adds, 9 to bring the sums into the lanes); memory is asked for 32 KB ahead, without which cold reads run at half
//! the rate. More tokens (prefill): a panel of 16 rows x up to 64 groups is unpacked once, then every token takes per
//! group 8 multiply-adds, one conversion, one product of scales and one FMA (two with a minimum): 8 of 10 operations at best
//! are multiply-adds. Two digits double the multiply-adds and add a conversion and an FMA.
//!
//! Inner loops are over constant ranges and raw pointers, without closures in iterator adaptors: those are compiled
//! without the instruction set, are not inlined, and cost a third of the speed.

#![expect(
    clippy::needless_range_loop,
    reason = "constant ranges unroll, and iterators over several arrays do not read better"
)]

use std::arch::x86_64::*;
use std::mem::MaybeUninit;
use std::ops::Range;

use super::blocks::{Column, LaneScales, ROWS, Wide, transpose};
use crate::backend::cpu::simd::Ahead;
use crate::backend::cpu::simd::avx2;
use crate::backend::cpu::simd::avx2::blocks::{
    Iq4Nl, Iq4Xs, Mxfp4, Q2K, Q3K, Q4_0, Q4_1, Q4K, Q5_0, Q5_1, Q5K, Q6K, Q8_0,
};
use crate::backend::cpu::threads::ColumnBlock;
use crate::model::Matrix;
use crate::quant::activation::{BASE, BIAS, Precision, QuantTile, TILE};
use crate::quant::{DType, Form, GROUP};

/// Groups per panel chunk: 32 KB of elements.
const CHUNK: usize = 64;
/// Fewest groups in a row: the units of legacy types are four.
const MIN_GROUPS: usize = 4;

/// `Kernels::matmul_quantized`. Rows beyond a multiple of sixteen, and very short ones, go the AVX2 way: same bits.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
pub fn matmul_quantized(
    w: &Matrix,
    rows: Range<usize>,
    x: &[QuantTile],
    next: &[u8],
    out: &mut ColumnBlock,
    column: usize,
) {
    assert!(rows.end <= w.rows && x.iter().all(|x| x.capacity() >= w.cols), "shapes");
    let wide = if w.cols / GROUP < MIN_GROUPS { 0 } else { rows.len() - rows.len() % ROWS };
    let whole = rows.start..rows.start + wide;
    let rest = (whole.end..rows.end, column + whole.len());
    // SAFETY: the shapes were checked above, and each type is read by its own blocks.
    unsafe {
        macro_rules! run {
            ($blocks:ty) => {
                matmul::<$blocks>(w, whole, x, next, out, column)
            };
        }
        by_type!(w.dtype, run);
    }
    if !rest.0.is_empty() {
        avx2::matmul::matmul_quantized(w, rest.0, x, next, out, rest.1);
    }
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
unsafe fn matmul<B: Wide>(
    w: &Matrix,
    rows: Range<usize>,
    x: &[QuantTile],
    next: &[u8],
    out: &mut ColumnBlock,
    column: usize,
) {
    let is_one_token = x.len() == 1 && x[0].width() == 1;
    let ahead = Ahead::new(w.rows_data(rows.clone()), next);
    let mut panel = MaybeUninit::<Panel>::uninit();
    for start in rows.clone().step_by(ROWS) {
        let data = w.rows_data(start..start + ROWS);
        let rows16 = Rows { first: data.as_ptr(), stride: w.row_bytes(), groups: w.cols / GROUP, ahead };
        let columns = column + start - rows.start..column + start - rows.start + ROWS;
        // SAFETY: `rows16` are sixteen whole rows of B's type.
        unsafe {
            if is_one_token {
                let sums = match x[0].precision() {
                    Precision::Int8 => rows16.times_one::<B, 1>(&x[0]),
                    Precision::Int16 => rows16.times_one::<B, 2>(&x[0]),
                };
                _mm512_storeu_ps(out.cells(0, columns).as_mut_ptr(), sums);
            } else {
                rows16.times_many::<B>(x, panel.as_mut_ptr(), out, columns);
            }
        }
    }
}

/// Sixteen rows that follow each other.
#[derive(Clone, Copy)]
struct Rows {
    first: *const u8,
    stride: usize,
    groups: usize,
    ahead: Ahead,
}

/// Whether the halves of a group have scales of their own.
const fn is_split<B: Wide>() -> bool {
    matches!(B::FORM, Form::Split | Form::SplitMin)
}

const fn has_min<B: Wide>() -> bool {
    matches!(B::FORM, Form::ScaleMin | Form::SplitMin)
}

/// Runs `$step!(J)` for every group of a unit, J a constant.
macro_rules! each_group {
    ($blocks:ty, $step:ident) => {
        $step!(0);
        $step!(1);
        $step!(2);
        $step!(3);
        if <$blocks>::UNIT > 4 {
            $step!(4);
            $step!(5);
            $step!(6);
            $step!(7);
        }
    };
}

impl Rows {
    /// The unit of groups that holds group `g`, and the number of its first one. The last unit of a row reaches back when
    /// the row is no whole number of units.
    #[inline(always)]
    fn unit<B: Wide>(&self, g: usize) -> (Column, usize) {
        let base = g.min(self.groups - B::UNIT);
        let offset = base * B::BYTES / (B::DTYPE.block_elements() / GROUP);
        (Column { first: self.first.wrapping_add(offset), stride: self.stride }, base)
    }

    /// Sixteen rows times one token.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
    unsafe fn times_one<B: Wide, const DIGITS: usize>(&self, x: &QuantTile) -> __m512 {
        let mut acc = _mm512_setzero_ps();
        let mut g = 0;
        while g < self.groups {
            let (column, base) = self.unit::<B>(g);
            let unit_bytes = base * GROUP * ROWS * B::BYTES / B::DTYPE.block_elements();
            let ahead = self.ahead.of(self.first.wrapping_add(unit_bytes));
            // SAFETY: the column lies in the rows.
            let head = unsafe { B::head(column) };
            macro_rules! step {
                ($j:literal) => {
                    if base + $j >= g {
                        Rows::prefetch::<B, $j>(ahead);
                        // SAFETY: as above; the group exists in `x`.
                        unsafe {
                            let scales = B::lane_scales::<$j>(&head);
                            let sum = one_group::<B, $j, DIGITS>(column, x, base + $j, &scales);
                            acc = add_group::<B>(sum, &scales, x, base + $j, acc);
                        }
                    }
                };
            }
            each_group!(B, step);
            g = base + B::UNIT;
        }
        acc
    }

    /// Asks for as many bytes as group `J` of a unit takes, one prefetch distance after the unit, which starts at `ahead`
    /// less that distance. Little by little: all at once would fill the queue of the L1 cache.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
    fn prefetch<B: Wide, const J: usize>(ahead: *const u8) {
        let bytes_of = |groups: usize| groups * GROUP * ROWS * B::BYTES / B::DTYPE.block_elements();
        let mut line = bytes_of(J).div_ceil(64);
        while line < bytes_of(J + 1).div_ceil(64) {
            _mm_prefetch::<_MM_HINT_T1>(ahead.wrapping_add(64 * line).cast());
            line += 1;
        }
    }

    /// Asks for the chunk that starts at group `g`, or for the first one of the next rows.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
    fn prefetch_chunk<B: Wide>(&self, g: usize) {
        let bytes_of = |groups: usize| groups * GROUP * B::BYTES / B::DTYPE.block_elements();
        let (first, groups) = match self.groups - g {
            0 => (self.first.wrapping_add(ROWS * self.stride), self.groups.min(CHUNK)),
            left => (self.first.wrapping_add(bytes_of(g)), left.min(CHUNK)),
        };
        for r in 0..ROWS {
            let mut at = 0;
            while at < bytes_of(groups) {
                _mm_prefetch::<_MM_HINT_T1>(first.wrapping_add(r * self.stride + at).cast());
                at += 64;
            }
        }
    }

    /// Sixteen rows times many tokens, chunk by chunk of groups; running sums rest in `out`.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
    unsafe fn times_many<B: Wide>(
        &self,
        x: &[QuantTile],
        panel: *mut Panel,
        out: &mut ColumnBlock,
        columns: Range<usize>,
    ) {
        let mut first = 0;
        while first < self.groups {
            let groups = first..self.groups.min(first + CHUNK);
            // SAFETY: the groups exist in every row, and fill the first entries of the panel.
            unsafe { unpack::<B>(panel, self, groups.clone()) };
            self.prefetch_chunk::<B>(groups.end);
            let mut token = 0;
            for tile in x {
                let mut sums = [_mm512_setzero_ps(); TILE];
                for t in 0..if first > 0 { tile.width() } else { 0 } {
                    // SAFETY: a load of sixteen cells.
                    sums[t] = unsafe { _mm512_loadu_ps(out.cells(token + t, columns.clone()).as_ptr()) };
                }
                // SAFETY: the tile has these groups, and the panel was filled with them.
                unsafe {
                    let panel = &*panel;
                    match tile.precision() {
                        Precision::Int8 => times_tile::<B, 1>(panel, tile, groups.clone(), &mut sums),
                        Precision::Int16 => times_tile::<B, 2>(panel, tile, groups.clone(), &mut sums),
                    }
                }
                for t in 0..tile.width() {
                    // SAFETY: a store of sixteen cells.
                    unsafe { _mm512_storeu_ps(out.cells(token + t, columns.clone()).as_mut_ptr(), sums[t]) };
                }
                token += tile.width();
            }
            first = groups.end;
        }
    }
}

/// The sum of products of a group in the lanes: exact for one digit, 255 high + low rounded once for two.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
unsafe fn one_group<B: Wide, const J: usize, const DIGITS: usize>(
    column: Column,
    x: &QuantTile,
    g: usize,
    scales: &LaneScales,
) -> __m512 {
    let zero = _mm512_setzero_si512();
    let (mut low, mut high) = ([[zero; 4]; DIGITS], [[zero; 4]; DIGITS]);
    for r in 0..4 {
        // SAFETY: the caller's column.
        let [low_w, high_w] = unsafe { B::wide_quants::<J>(column, r) };
        for d in 0..DIGITS {
            let q = x.q(g, d).as_ptr();
            // SAFETY: sixteen bytes each of the 32 of a group.
            let (low_x, high_x) = unsafe { (_mm_loadu_si128(q.cast()), _mm_loadu_si128(q.add(16).cast())) };
            low[d][r] = _mm512_dpbusd_epi32(zero, low_w, _mm512_broadcast_i32x4(low_x));
            let start = if is_split::<B>() { zero } else { low[d][r] };
            let both = _mm512_dpbusd_epi32(start, high_w, _mm512_broadcast_i32x4(high_x));
            if is_split::<B>() {
                high[d][r] = both;
            } else {
                low[d][r] = both;
            }
        }
    }
    let mut sum = _mm512_setzero_ps();
    for d in 0..DIGITS {
        // what takes the bias off: the tile's is made for `BIAS`
        let unbias = |half: usize| _mm512_set1_epi32(x.unbias(g, d, half)[0] / BIAS * B::BIAS);
        let digit = if is_split::<B>() {
            let first = _mm512_cvtepi32_ps(_mm512_add_epi32(into_lanes(low[d]), unbias(0)));
            let second = _mm512_cvtepi32_ps(_mm512_add_epi32(into_lanes(high[d]), unbias(1)));
            _mm512_fmadd_ps(second, scales.scale[1], _mm512_mul_ps(first, scales.scale[0]))
        } else {
            let sums = into_lanes(low[d]);
            _mm512_cvtepi32_ps(if B::BIAS == 0 { sums } else { _mm512_add_epi32(sums, unbias(2)) })
        };
        sum = if d == 0 { digit } else { _mm512_fmadd_ps(sum, _mm512_set1_ps(BASE), digit) };
    }
    sum
}

/// Four registers, each of four rows with four partial sums -> lane r holds the sum of row r.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
fn into_lanes(s: [__m512i; 4]) -> __m512i {
    let pairs = |a: __m512i, b: __m512i| _mm512_add_epi32(_mm512_unpacklo_epi32(a, b), _mm512_unpackhi_epi32(a, b));
    let (a, b) = (pairs(s[0], s[1]), pairs(s[2], s[3]));
    _mm512_add_epi32(_mm512_unpacklo_epi64(a, b), _mm512_unpackhi_epi64(a, b))
}

/// One step of the contract's dot product in sixteen lanes, for a token that is alone in its tile.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
fn add_group<B: Wide>(sum: __m512, w: &LaneScales, x: &QuantTile, g: usize, acc: __m512) -> __m512 {
    let x_scale = _mm512_set1_ps(x.x_scale(g)[0]);
    let acc = _mm512_fmadd_ps(sum, _mm512_mul_ps(w.w_scale, x_scale), acc);
    match B::FORM {
        Form::Scale | Form::Split => acc,
        Form::ScaleMin => _mm512_fmadd_ps(w.w_min, _mm512_set1_ps(x.x_sum(g)[0]), acc),
        Form::SplitMin => {
            let half = |h: usize| _mm512_set1_ps(x.half_sums(g, h)[0] as f32);
            let min_sum = _mm512_fmadd_ps(w.min[1], half(1), _mm512_mul_ps(w.min[0], half(0)));
            _mm512_fmadd_ps(w.w_min, _mm512_mul_ps(min_sum, x_scale), acc)
        }
    }
}

/// Up to `CHUNK` groups of sixteen rows, unpacked; a type fills what its form uses.
#[repr(C, align(64))]
struct Panel {
    /// [group][element / 4][row][4], unsigned; signed types with `BIAS`
    q: [[[u8; 4 * ROWS]; 8]; CHUNK],
    w_scale: [[f32; ROWS]; CHUNK],
    w_min: [[f32; ROWS]; CHUNK],
    /// [group][half][row]
    scale: [[[f32; ROWS]; 2]; CHUNK],
    min: [[[f32; ROWS]; 2]; CHUNK],
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
unsafe fn unpack<B: Wide>(panel: *mut Panel, rows: &Rows, groups: Range<usize>) {
    let to_bias = _mm512_set1_epi8(if B::BIAS == 0 { 0 } else { (BIAS - B::BIAS) as i8 });
    let mut g = groups.start;
    while g < groups.end {
        let (column, base) = rows.unit::<B>(g);
        // SAFETY: the column lies in the rows.
        let head = unsafe { B::head(column) };
        macro_rules! step {
            ($j:literal) => {
                if base + $j >= g {
                    // SAFETY: as above; at most `CHUNK` groups are written, each to its own entry.
                    unsafe {
                        let i = base + $j - groups.start;
                        let (a, b) = (B::wide_quants::<$j>(column, 0), B::wide_quants::<$j>(column, 1));
                        let (c, d) = (B::wide_quants::<$j>(column, 2), B::wide_quants::<$j>(column, 3));
                        for half in 0..2 {
                            let quads = transpose([a[half], b[half], c[half], d[half]]);
                            for k in 0..4 {
                                let to = (&raw mut (*panel).q[i][4 * half + k]).cast();
                                _mm512_store_si512(to, _mm512_add_epi8(quads[k], to_bias));
                            }
                        }
                        store_scales::<B>(panel, i, &B::lane_scales::<$j>(&head));
                    }
                }
            };
        }
        each_group!(B, step);
        g = base + B::UNIT;
    }
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
unsafe fn store_scales<B: Wide>(panel: *mut Panel, i: usize, scales: &LaneScales) {
    // SAFETY: entry `i` of the panel, which is aligned to 64 bytes.
    unsafe {
        _mm512_store_ps((&raw mut (*panel).w_scale[i]).cast(), scales.w_scale);
        if has_min::<B>() {
            _mm512_store_ps((&raw mut (*panel).w_min[i]).cast(), scales.w_min);
        }
        for half in 0..2 {
            if is_split::<B>() {
                _mm512_store_ps((&raw mut (*panel).scale[i][half]).cast(), scales.scale[half]);
            }
            if is_split::<B>() && has_min::<B>() {
                _mm512_store_ps((&raw mut (*panel).min[i][half]).cast(), scales.min[half]);
            }
        }
    }
}

/// Adds the products of the panel with the tokens of a tile to their accumulators.
///
/// # Safety
/// The panel holds these groups of a matrix of B's type, the tile has them in `DIGITS` digits.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
unsafe fn times_tile<B: Wide, const DIGITS: usize>(
    panel: &Panel,
    x: &QuantTile,
    groups: Range<usize>,
    sums: &mut [__m512; TILE],
) {
    // SAFETY: the caller's promise.
    unsafe {
        match (is_split::<B>(), has_min::<B>()) {
            (false, false) => times_width::<false, false, DIGITS>(panel, x, groups, sums),
            (false, true) => times_width::<false, true, DIGITS>(panel, x, groups, sums),
            (true, false) => times_width::<true, false, DIGITS>(panel, x, groups, sums),
            (true, true) => times_width::<true, true, DIGITS>(panel, x, groups, sums),
        }
    }
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
unsafe fn times_width<const SPLIT: bool, const MIN: bool, const DIGITS: usize>(
    panel: &Panel,
    x: &QuantTile,
    groups: Range<usize>,
    sums: &mut [__m512; TILE],
) {
    // SAFETY: the caller's promise.
    unsafe {
        match x.width() {
            1 => times::<SPLIT, MIN, 1, DIGITS>(panel, x, groups, sums),
            2 => times::<SPLIT, MIN, 2, DIGITS>(panel, x, groups, sums),
            3 => times::<SPLIT, MIN, 3, DIGITS>(panel, x, groups, sums),
            4 => times::<SPLIT, MIN, 4, DIGITS>(panel, x, groups, sums),
            5 => times::<SPLIT, MIN, 5, DIGITS>(panel, x, groups, sums),
            6 => times::<SPLIT, MIN, 6, DIGITS>(panel, x, groups, sums),
            7 => times::<SPLIT, MIN, 7, DIGITS>(panel, x, groups, sums),
            _ => times::<SPLIT, MIN, TILE, DIGITS>(panel, x, groups, sums),
        }
    }
}

/// The one shape of all products of many tokens: `N` tokens, `DIGITS` digits, scales by form. Types with a minimum are
/// unsigned, all others carry `BIAS`.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
unsafe fn times<const SPLIT: bool, const MIN: bool, const N: usize, const DIGITS: usize>(
    panel: &Panel,
    x: &QuantTile,
    groups: Range<usize>,
    sums: &mut [__m512; TILE],
) {
    let mut acc = [_mm512_setzero_ps(); N];
    acc.copy_from_slice(&sums[..N]);
    let q = x.q(groups.start, 0).as_ptr().cast::<i32>();
    let unbias = x.unbias(groups.start, 0, 0).as_ptr();
    let (x_scale, x_sum) = (x.x_scale(groups.start).as_ptr(), x.x_sum(groups.start).as_ptr());
    let half_sums = x.half_sums(groups.start, 0).as_ptr();
    for i in 0..groups.len() {
        // SAFETY: every pointer stays within the groups of the tile, whose layout `QuantTile` documents.
        unsafe {
            let mut total = [_mm512_setzero_ps(); N];
            for d in 0..DIGITS {
                let (q, unbias) = (q.add((i * DIGITS + d) * 8 * N), unbias.add((i * DIGITS + d) * 3 * N));
                let mut digit = [_mm512_setzero_ps(); N];
                if SPLIT {
                    let first = dot::<MIN, N>(&panel.q[i], q, unbias, 0..4);
                    let second = dot::<MIN, N>(&panel.q[i], q, unbias.add(N), 4..8);
                    let scale = [load(&panel.scale[i][0]), load(&panel.scale[i][1])];
                    for t in 0..N {
                        let first = _mm512_mul_ps(_mm512_cvtepi32_ps(first[t]), scale[0]);
                        digit[t] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(second[t]), scale[1], first);
                    }
                } else {
                    let sums = dot::<MIN, N>(&panel.q[i], q, unbias.add(2 * N), 0..8);
                    for t in 0..N {
                        digit[t] = _mm512_cvtepi32_ps(sums[t]);
                    }
                }
                for t in 0..N {
                    let high = _mm512_set1_ps(BASE);
                    total[t] = if d == 0 { digit[t] } else { _mm512_fmadd_ps(total[t], high, digit[t]) };
                }
            }
            let w_scale = load(&panel.w_scale[i]);
            for t in 0..N {
                let x_scale = _mm512_set1_ps(*x_scale.add(i * N + t));
                acc[t] = _mm512_fmadd_ps(total[t], _mm512_mul_ps(w_scale, x_scale), acc[t]);
            }
            if MIN {
                let w_min = load(&panel.w_min[i]);
                for t in 0..N {
                    let factor = if SPLIT {
                        let sum = |half: usize| _mm512_set1_ps(*half_sums.add((2 * i + half) * N + t) as f32);
                        let first = _mm512_mul_ps(load(&panel.min[i][0]), sum(0));
                        let min_sum = _mm512_fmadd_ps(load(&panel.min[i][1]), sum(1), first);
                        _mm512_mul_ps(min_sum, _mm512_set1_ps(*x_scale.add(i * N + t)))
                    } else {
                        _mm512_set1_ps(*x_sum.add(i * N + t))
                    };
                    acc[t] = _mm512_fmadd_ps(w_min, factor, acc[t]);
                }
            }
        }
    }
    sums[..N].copy_from_slice(&acc);
}

/// Integer sums of the `quads` of a group for `N` tokens; what takes the bias off is where they start.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
unsafe fn dot<const MIN: bool, const N: usize>(
    w: &[[u8; 4 * ROWS]; 8],
    q: *const i32,
    unbias: *const i32,
    quads: Range<usize>,
) -> [__m512i; N] {
    let mut sums = [_mm512_setzero_si512(); N];
    if !MIN {
        for t in 0..N {
            // SAFETY: N values.
            sums[t] = _mm512_set1_epi32(unsafe { *unbias.add(t) });
        }
    }
    for k in quads {
        // SAFETY: 64 aligned bytes of the panel.
        let w = unsafe { _mm512_load_si512(w[k].as_ptr().cast()) };
        for t in 0..N {
            // SAFETY: four bytes of token `t` of the 8 x N quads of a group.
            let x = _mm512_set1_epi32(unsafe { q.add(k * N + t).read_unaligned() });
            sums[t] = _mm512_dpbusd_epi32(sums[t], w, x);
        }
        if N == TILE {
            keep_order(&mut sums);
        }
    }
    sums
}

/// No instruction, but a point that all sums have to pass together. Without it the compiler brings the eight multiply-adds
/// of a token together to save registers; each waits five cycles for the one before, and the queue in front of the units is
/// too short to find enough others.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
fn keep_order<const N: usize>(s: &mut [__m512i; N]) {
    // SAFETY: an empty text, which changes nothing.
    unsafe {
        std::arch::asm!(
            "/* {0} {1} {2} {3} {4} {5} {6} {7} */",
            inout(zmm_reg) s[0],
            inout(zmm_reg) s[1],
            inout(zmm_reg) s[2],
            inout(zmm_reg) s[3],
            inout(zmm_reg) s[4],
            inout(zmm_reg) s[5],
            inout(zmm_reg) s[6],
            inout(zmm_reg) s[7],
            options(pure, nomem, nostack, preserves_flags)
        );
    }
}

/// Sixteen scales of a panel.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
fn load(lanes: &[f32; ROWS]) -> __m512 {
    // SAFETY: 64 bytes, aligned as the panel is.
    unsafe { _mm512_load_ps(lanes.as_ptr()) }
}
