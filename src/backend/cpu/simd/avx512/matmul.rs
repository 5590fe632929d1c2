//! Quantized matrix products with VNNI: sixteen rows in the lanes, groups in order, one accumulator per (row, token).
//!
//! One token (decode): per group of 32 x 16 rows about 45 operations on the bytes as they lie in the file (16 loads, 8
//! multiply-adds, 9 to bring the sums into the lanes); memory is asked for 32 KB ahead, without which cold reads run at half
//! the rate. More tokens (prefill): a panel of 16 rows x up to 64 groups is unpacked once, then every token takes per
//! group 8 multiply-adds, one conversion, one product of scales and one FMA (two with a minimum).

use std::arch::x86_64::*;
use std::ops::Range;

use super::blocks::{Column, LaneScales, ROWS, Wide, transpose};
use crate::backend::cpu::simd::avx2;
use crate::backend::cpu::simd::avx2::blocks::{
    Iq4Nl, Iq4Xs, Mxfp4, Q2K, Q3K, Q4_0, Q4_1, Q4K, Q5_0, Q5_1, Q5K, Q6K, Q8_0,
};
use crate::backend::cpu::threads::ColumnBlock;
use crate::model::Matrix;
use crate::quant::activation::{BIAS, QuantTile, TILE};
use crate::quant::{DType, Form, GROUP};

/// Groups per panel chunk: 32 KB of elements.
const CHUNK: usize = 64;
/// How far ahead of the current panel memory is asked for.
const PREFETCH_BYTES: usize = 32 << 10;

/// `Kernels::matmul_quantized`. Rows beyond a multiple of sixteen go the AVX2 way, which gives the same bits.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
pub fn matmul_quantized(w: &Matrix, rows: Range<usize>, x: &[QuantTile], out: &mut ColumnBlock, column: usize) {
    assert!(rows.end <= w.rows && x.iter().all(|x| x.capacity() >= w.cols), "shapes");
    let whole = rows.start..rows.end - rows.len() % ROWS;
    let rest = (whole.end..rows.end, column + whole.len());
    // SAFETY: the shapes were checked above, and each type is read by its own blocks.
    unsafe {
        match w.dtype {
            DType::Q4_0 => matmul::<Q4_0>(w, whole, x, out, column),
            DType::Q4_1 => matmul::<Q4_1>(w, whole, x, out, column),
            DType::Q5_0 => matmul::<Q5_0>(w, whole, x, out, column),
            DType::Q5_1 => matmul::<Q5_1>(w, whole, x, out, column),
            DType::Q8_0 => matmul::<Q8_0>(w, whole, x, out, column),
            DType::Q2_K => matmul::<Q2K>(w, whole, x, out, column),
            DType::Q3_K => matmul::<Q3K>(w, whole, x, out, column),
            DType::Q4_K => matmul::<Q4K>(w, whole, x, out, column),
            DType::Q5_K => matmul::<Q5K>(w, whole, x, out, column),
            DType::Q6_K => matmul::<Q6K>(w, whole, x, out, column),
            DType::IQ4_NL => matmul::<Iq4Nl>(w, whole, x, out, column),
            DType::IQ4_XS => matmul::<Iq4Xs>(w, whole, x, out, column),
            DType::MXFP4 => matmul::<Mxfp4>(w, whole, x, out, column),
            DType::F32 | DType::F16 | DType::BF16 => panic!("only quantized matrices come here"),
        }
    }
    if !rest.0.is_empty() {
        avx2::matmul::matmul_quantized(w, rest.0, x, out, rest.1);
    }
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
unsafe fn matmul<B: Wide>(w: &Matrix, rows: Range<usize>, x: &[QuantTile], out: &mut ColumnBlock, column: usize) {
    let is_one_token = x.len() == 1 && x[0].width() == 1;
    let mut panel = if is_one_token { None } else { Some(Panel::new()) };
    for start in rows.clone().step_by(ROWS) {
        let data = w.rows_data(start..start + ROWS);
        let rows16 = Rows { first: data.as_ptr(), stride: w.row_bytes(), groups: w.cols / GROUP };
        let at = column + start - rows.start;
        // SAFETY: `rows16` are sixteen whole rows of B's type.
        unsafe {
            match &mut panel {
                None => {
                    let sums = rows16.times_one::<B>(&x[0]);
                    _mm512_storeu_ps(out.cells(0, at..at + ROWS).as_mut_ptr(), sums);
                }
                Some(panel) => rows16.times_many::<B>(x, panel, out, at..at + ROWS),
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
}

/// Runs `$step!(J)` for every group of a block, J a constant.
macro_rules! each_group {
    ($blocks:ty, $step:ident) => {
        $step!(0);
        if <$blocks>::DTYPE.block_elements() > GROUP {
            $step!(1);
            $step!(2);
            $step!(3);
            $step!(4);
            $step!(5);
            $step!(6);
            $step!(7);
        }
    };
}

impl Rows {
    /// Block column `b`.
    #[inline(always)]
    fn column<B: Wide>(&self, b: usize) -> Column {
        Column { block: self.first.wrapping_add(b * B::DTYPE.block_bytes()), stride: self.stride }
    }

    /// Sixteen rows times one token.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
    unsafe fn times_one<B: Wide>(&self, x: &QuantTile) -> __m512 {
        let groups_per_block = B::DTYPE.block_elements() / GROUP;
        let mut acc = _mm512_setzero_ps();
        for b in 0..self.groups / groups_per_block {
            let column = self.column::<B>(b);
            self.prefetch::<B>(b);
            // SAFETY: the column lies in the rows.
            let head = unsafe { B::head(column) };
            macro_rules! step {
                ($j:literal) => {
                    // SAFETY: as above; the group exists in `x`.
                    unsafe {
                        let g = b * groups_per_block + $j;
                        let sums = one_group::<B, $j>(column, x, g);
                        acc = add_group::<B>(sums, &B::wide_scales::<$j>(&head), Activation::of(x, g, 0), acc);
                    }
                };
            }
            each_group!(B, step);
        }
        acc
    }

    /// Asks for the bytes one prefetch distance after this block column of the panel.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
    fn prefetch<B: Wide>(&self, b: usize) {
        let bytes = B::DTYPE.block_bytes() * ROWS;
        let ahead = self.first.wrapping_add(PREFETCH_BYTES + b * bytes);
        for line in (0..bytes).step_by(64) {
            _mm_prefetch::<_MM_HINT_T1>(ahead.wrapping_add(line).cast());
        }
    }

    /// Sixteen rows times many tokens, chunk by chunk of groups; running sums rest in `out`.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
    unsafe fn times_many<B: Wide>(
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
            let mut token = 0;
            for tile in x {
                let mut acc = [_mm512_setzero_ps(); TILE];
                for (t, acc) in acc.iter_mut().enumerate().take(if first > 0 { tile.width() } else { 0 }) {
                    // SAFETY: a load of sixteen cells.
                    *acc = unsafe { _mm512_loadu_ps(out.cells(token + t, columns.clone()).as_ptr()) };
                }
                // SAFETY: the tile has these groups.
                unsafe {
                    match tile.width() {
                        1 => panel.times::<B, 1>(tile, groups.clone(), &mut acc),
                        2 => panel.times::<B, 2>(tile, groups.clone(), &mut acc),
                        3 => panel.times::<B, 3>(tile, groups.clone(), &mut acc),
                        4 => panel.times::<B, 4>(tile, groups.clone(), &mut acc),
                        5 => panel.times::<B, 5>(tile, groups.clone(), &mut acc),
                        6 => panel.times::<B, 6>(tile, groups.clone(), &mut acc),
                        7 => panel.times::<B, 7>(tile, groups.clone(), &mut acc),
                        _ => panel.times::<B, TILE>(tile, groups.clone(), &mut acc),
                    }
                }
                for (t, acc) in acc.iter().enumerate().take(tile.width()) {
                    // SAFETY: a store of sixteen cells.
                    unsafe { _mm512_storeu_ps(out.cells(token + t, columns.clone()).as_mut_ptr(), *acc) };
                }
                token += tile.width();
            }
        }
    }
}

/// Whether the halves of a group have scales of their own.
const fn is_split<B: Wide>() -> bool {
    matches!(B::FORM, Form::Split | Form::SplitMin)
}

/// The integer sums of a group in the lanes, the bias taken off: of both halves, or of everything in the first.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
unsafe fn one_group<B: Wide, const J: usize>(column: Column, x: &QuantTile, g: usize) -> [__m512i; 2] {
    let zero = _mm512_setzero_si512();
    let q = x.q(g);
    let (mut low, mut high) = ([zero; 4], [zero; 4]);
    // SAFETY: sixteen bytes each of the 32 of a group; the caller's column.
    unsafe {
        let low_x = _mm512_broadcast_i32x4(_mm_loadu_si128(q.as_ptr().cast()));
        let high_x = _mm512_broadcast_i32x4(_mm_loadu_si128(q.as_ptr().add(16).cast()));
        for r in 0..4 {
            let [low_w, high_w] = B::wide_quants::<J>(column, r);
            low[r] = _mm512_dpbusd_epi32(zero, low_w, low_x);
            if is_split::<B>() {
                high[r] = _mm512_dpbusd_epi32(zero, high_w, high_x);
            } else {
                low[r] = _mm512_dpbusd_epi32(low[r], high_w, high_x);
            }
        }
    }
    let unbiased = |sums: [__m512i; 4], bias_sum: i32| match B::BIAS {
        0 => into_lanes(sums),
        bias => _mm512_sub_epi32(into_lanes(sums), _mm512_set1_epi32(bias * bias_sum)),
    };
    let halves = [x.half_sums(g, 0)[0], x.half_sums(g, 1)[0]];
    if is_split::<B>() {
        [unbiased(low, halves[0]), unbiased(high, halves[1])]
    } else {
        [unbiased(low, halves[0] + halves[1]), zero]
    }
}

/// Four registers, each of four rows with four partial sums -> lane r holds the sum of row r.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
fn into_lanes(s: [__m512i; 4]) -> __m512i {
    let [a, b, c, d] = transpose(s);
    _mm512_add_epi32(_mm512_add_epi32(a, b), _mm512_add_epi32(c, d))
}

/// What a token brings to a group beside its elements, in all lanes.
#[derive(Clone, Copy)]
struct Activation {
    x_scale: __m512,
    x_sum: __m512,
    half_sums: [__m512i; 2],
}

impl Activation {
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
    fn of(x: &QuantTile, g: usize, token: usize) -> Activation {
        Activation {
            x_scale: _mm512_set1_ps(x.x_scale(g)[token]),
            x_sum: _mm512_set1_ps(x.x_sum(g)[token]),
            half_sums: [0, 1].map(|half| _mm512_set1_epi32(x.half_sums(g, half)[token])),
        }
    }
}

/// One step of the contract's dot product in sixteen lanes.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
fn add_group<B: Wide>(sums: [__m512i; 2], w: &LaneScales, x: Activation, acc: __m512) -> __m512 {
    let int_sum = if is_split::<B>() {
        _mm512_add_epi32(_mm512_mullo_epi32(sums[0], w.scale[0]), _mm512_mullo_epi32(sums[1], w.scale[1]))
    } else {
        sums[0]
    };
    let acc = _mm512_fmadd_ps(_mm512_cvtepi32_ps(int_sum), _mm512_mul_ps(w.w_scale, x.x_scale), acc);
    match B::FORM {
        Form::Scale | Form::Split => acc,
        Form::ScaleMin => _mm512_fmadd_ps(w.w_min, x.x_sum, acc),
        Form::SplitMin => {
            let half = |h: usize| _mm512_mullo_epi32(w.min[h], x.half_sums[h]);
            let min_sum = _mm512_cvtepi32_ps(_mm512_add_epi32(half(0), half(1)));
            _mm512_fmadd_ps(w.w_min, _mm512_mul_ps(min_sum, x.x_scale), acc)
        }
    }
}

/// Up to `CHUNK` groups of sixteen rows, unpacked: `q[group][element / 4][row][4]` unsigned, signed types with `BIAS`.
struct Panel {
    q: Box<[[__m512i; 8]; CHUNK]>,
    scales: Box<[LaneScales; CHUNK]>,
}

impl Panel {
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
    fn new() -> Panel {
        let (zero, none) = (_mm512_setzero_si512(), _mm512_setzero_ps());
        let scales = LaneScales { w_scale: none, w_min: none, scale: [zero; 2], min: [zero; 2] };
        Panel { q: Box::new([[zero; 8]; CHUNK]), scales: Box::new([scales; CHUNK]) }
    }

    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
    unsafe fn unpack<B: Wide>(&mut self, rows: &Rows, groups: Range<usize>) {
        let groups_per_block = B::DTYPE.block_elements() / GROUP;
        let to_bias = _mm512_set1_epi8(if B::BIAS == 0 { 0 } else { (BIAS - B::BIAS) as i8 });
        let mut i = 0;
        for b in groups.start / groups_per_block..groups.end / groups_per_block {
            let column = rows.column::<B>(b);
            // SAFETY: the column lies in the rows.
            let head = unsafe { B::head(column) };
            macro_rules! step {
                ($j:literal) => {
                    let mut v = [[_mm512_setzero_si512(); 2]; 4];
                    for (r, v) in v.iter_mut().enumerate() {
                        // SAFETY: as above.
                        *v = unsafe { B::wide_quants::<$j>(column, r) };
                    }
                    for half in 0..2 {
                        let quads = transpose([v[0][half], v[1][half], v[2][half], v[3][half]]);
                        for (k, quad) in quads.into_iter().enumerate() {
                            self.q[i][4 * half + k] = _mm512_add_epi8(quad, to_bias);
                        }
                    }
                    // SAFETY: the CPU has the features.
                    self.scales[i] = unsafe { B::wide_scales::<$j>(&head) };
                    i += 1;
                };
            }
            each_group!(B, step);
        }
    }

    /// Adds the products of these groups with the `N` tokens of a tile to their accumulators.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
    unsafe fn times<B: Wide, const N: usize>(&self, x: &QuantTile, groups: Range<usize>, acc: &mut [__m512; TILE]) {
        assert_eq!(x.width(), N, "tokens of the tile");
        let mut sums = [_mm512_setzero_ps(); N];
        sums.copy_from_slice(&acc[..N]);
        for (i, g) in groups.enumerate() {
            let (q, quads, scales) = (&self.q[i], x.q(g).as_ptr().cast::<i32>(), &self.scales[i]);
            let half = |h: usize, mut s: [__m512i; N]| {
                for (k, &w) in q.iter().enumerate().skip(4 * h).take(4) {
                    for (t, s) in s.iter_mut().enumerate() {
                        // SAFETY: four bytes of token `t` of the 8 x N quads of group `g`.
                        let x4 = unsafe { quads.add(k * N + t).read_unaligned() };
                        *s = _mm512_dpbusd_epi32(*s, w, _mm512_set1_epi32(x4));
                    }
                }
                s
            };
            let start = |h: usize| -> [__m512i; N] {
                let unbias = x.unbias(g, h).as_ptr();
                // SAFETY: N values per half of a group.
                std::array::from_fn(|t| match B::BIAS {
                    0 => _mm512_setzero_si512(),
                    _ => _mm512_set1_epi32(unsafe { *unbias.add(t) }),
                })
            };
            let (low, high) = if is_split::<B>() {
                (half(0, start(0)), half(1, start(1)))
            } else {
                (half(1, half(0, start(2))), [_mm512_setzero_si512(); N])
            };
            for t in 0..N {
                sums[t] = add_group::<B>([low[t], high[t]], scales, Activation::of(x, g, t), sums[t]);
            }
        }
        acc[..N].copy_from_slice(&sums);
    }
}
