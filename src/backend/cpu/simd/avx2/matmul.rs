//! Quantized matrix products: eight rows in the lanes, groups in order, one accumulator per (row, token).
//!
//! One token (decode) reads the rows as they lie in the file and is bound by memory: per group of 32 and row the block's
//! bytes are read once, 3 integer operations multiply them and 7 adds per 8 rows bring the sums into the lanes.
//! More tokens (prefill) unpack a panel of 8 rows x up to 64 groups into the L1 cache once and use it for all of them.
//!
//! The hardware multiplies unsigned by signed bytes and adds pairs into 16 bits, which saturate: `Blocks::MAX` * 127 * 2
//! must fit, and several such sums may be added before they are widened (`words_of`). With 4-bit types that makes 8
//! multiplications, 7 adds and one widening per 32 x 8 products and token. Types of 8 bits are multiplied as
//! |w| * (x with the sign of w) instead: 128 * 127 * 2 fits.

#![expect(
    clippy::needless_range_loop,
    reason = "constant ranges unroll, and iterators over several arrays do not read better"
)]

use std::arch::x86_64::*;
use std::mem::MaybeUninit;
use std::ops::Range;

use super::Ahead;
use super::blocks::*;
use crate::backend::cpu::threads::ColumnBlock;
use crate::model::Matrix;
use crate::quant::activation::{BASE, BIAS, Precision, QuantTile};
use crate::quant::{DType, Form, GROUP};

/// Rows per panel.
const ROWS: usize = 8;
/// Groups per panel chunk: 16 KB of elements plus at most 10 KB of scales.
const CHUNK: usize = 64;
/// Tokens of a tile at once: four accumulators and four integer sums beside the weights fill the sixteen registers.
const STRIP: usize = 4;

/// `Kernels::matmul_quantized`.
#[target_feature(enable = "avx2,fma,f16c")]
pub fn matmul_quantized(
    w: &Matrix,
    rows: Range<usize>,
    x: &[QuantTile],
    next: &[u8],
    out: &mut ColumnBlock,
    column: usize,
) {
    assert!(rows.end <= w.rows && x.iter().all(|x| x.capacity() >= w.cols), "shapes");
    assert!(!x.is_empty(), "no tokens");
    // SAFETY: the shapes were checked above, and each type is read by its own blocks.
    unsafe {
        macro_rules! run {
            ($blocks:ty) => {
                matmul::<$blocks>(w, rows, x, next, out, column)
            };
        }
        by_type!(w.dtype, run);
    }
}

#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn matmul<B: Blocks>(
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
        let n = ROWS.min(rows.end - start);
        let row = PanelRows::new(w, start, n, ahead);
        let columns = column + start - rows.start..column + start - rows.start + n;
        // SAFETY: `row` points to whole rows of `w`, whose type is B's.
        unsafe {
            if is_one_token {
                let sums = match x[0].precision() {
                    Precision::Int8 => row.times_one::<B, 1>(&x[0]),
                    Precision::Int16 => row.times_one::<B, 2>(&x[0]),
                };
                store(sums, out.cells(0, columns));
            } else {
                row.times_many::<B>(x, panel.as_mut_ptr(), out, columns);
            }
        }
    }
}

/// Writes the lanes that stand for real rows.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn store(lanes: __m256, cells: &mut [f32]) {
    let mut all = [0f32; ROWS];
    // SAFETY: a store of eight floats.
    unsafe { _mm256_storeu_ps(all.as_mut_ptr(), lanes) };
    cells.copy_from_slice(&all[..cells.len()]);
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn load(cells: &[f32]) -> __m256 {
    let mut all = [0f32; ROWS];
    all[..cells.len()].copy_from_slice(cells);
    // SAFETY: a load of eight floats.
    unsafe { _mm256_loadu_ps(all.as_ptr()) }
}

/// Eight rows of a matrix; past the end the last row stands in, and its lanes are not stored.
struct PanelRows {
    rows: [*const u8; ROWS],
    groups: usize,
    ahead: Ahead,
}

/// Scales of one group of eight rows, by `Form`. Integer scales are small enough that their products with sums are exact
/// as floats too.
#[derive(Clone, Copy)]
struct LaneScales {
    w_scale: __m256,
    w_min: __m256,
    scale: [__m256; 2],
    min: [__m256; 2],
}

/// Sums of products of one group in eight lanes, both halves of 16 elements apart.
pub type Halves = [__m256i; 2];

const fn is_split<B: Blocks>() -> bool {
    matches!(B::FORM, Form::Split | Form::SplitMin)
}

const fn has_min<B: Blocks>() -> bool {
    matches!(B::FORM, Form::ScaleMin | Form::SplitMin)
}

/// Whether elements are multiplied as unsigned bytes.
const fn is_unsigned<B: Blocks>() -> bool {
    words_of::<B>() > 0
}

/// How many sums of two products fit into 16 bits (0: not even one), in the steps there are kernels for.
const fn words_of<B: Blocks>() -> usize {
    match i16::MAX as i32 / (2 * 127 * B::MAX) {
        0 => 0,
        1 => 1,
        2..4 => 2,
        4..8 => 4,
        _ => 8,
    }
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
    #[inline(always)]
    unsafe fn block<B: Blocks>(&self, r: usize, g: usize) -> (*const u8, usize) {
        let per_block = B::DTYPE.block_elements() / GROUP;
        // SAFETY: `g` is below `groups`, so the block lies in the row.
        (unsafe { self.rows[r].add(g / per_block * B::BYTES) }, g % per_block)
    }

    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn lane_scales<B: Blocks>(&self, g: usize) -> LaneScales {
        let (mut d, mut m) = ([0u16; ROWS], [0u16; ROWS]);
        let mut d32 = [0f32; ROWS];
        let (mut scale, mut min) = ([[0i32; ROWS]; 2], [[0i32; ROWS]; 2]);
        for r in 0..ROWS {
            // SAFETY: reads within the block of an existing group.
            unsafe {
                let (block, j) = self.block::<B>(r, g);
                match B::f32_scale(block) {
                    Some(scale) => d32[r] = scale,
                    None => d[r] = block.add(B::D).cast::<u16>().read_unaligned(),
                }
                m[r] = block.add(B::M).cast::<u16>().read_unaligned();
                let scales = B::scales(block, j);
                for h in 0..2 {
                    scale[h][r] = scales.scale[h];
                    min[h][r] = scales.min[h];
                }
            }
        }
        // SAFETY: loads of whole arrays of eight.
        unsafe {
            let halfs = |v: &[u16; ROWS]| _mm256_cvtph_ps(_mm_loadu_si128(v.as_ptr().cast()));
            let ints = |v: &[i32; ROWS]| _mm256_cvtepi32_ps(_mm256_loadu_si256(v.as_ptr().cast()));
            let scale = [ints(&scale[0]), ints(&scale[1])];
            let min = [ints(&min[0]), ints(&min[1])];
            let mut w_scale =
                if B::DTYPE as u32 == DType::MXFP4 as u32 { _mm256_loadu_ps(d32.as_ptr()) } else { halfs(&d) };
            let mut w_min = halfs(&m);
            if B::SCALED {
                w_scale = _mm256_mul_ps(w_scale, scale[0]);
                w_min = _mm256_mul_ps(w_min, min[0]);
            }
            // Q4_1 and Q5_1 add their minimum, the K types subtract it
            let adds = matches!(B::DTYPE, DType::Q4_1 | DType::Q5_1);
            let w_min = if adds { w_min } else { _mm256_xor_ps(w_min, _mm256_set1_ps(-0.0)) };
            LaneScales { w_scale, w_min, scale, min }
        }
    }

    /// Eight rows times one token.
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn times_one<B: Blocks, const DIGITS: usize>(&self, x: &QuantTile) -> __m256 {
        let mut acc = _mm256_setzero_ps();
        for g in 0..self.groups {
            // SAFETY: group `g` exists in every row and in `x`; prefetches never fault.
            unsafe {
                if g % 4 == 0 {
                    self.prefetch::<B>(g);
                }
                let mut sums = [[_mm256_setzero_si256(); ROWS]; DIGITS];
                for r in 0..ROWS {
                    let (block, j) = self.block::<B>(r, g);
                    let w = B::quants(block, j);
                    for d in 0..DIGITS {
                        let x = _mm256_loadu_si256(x.q(g, d).as_ptr().cast());
                        sums[d][r] = if is_unsigned::<B>() {
                            widen(_mm256_maddubs_epi16(w, x))
                        } else {
                            products(_mm256_xor_si256(w, _mm256_set1_epi8(-128)), x)
                        };
                    }
                }
                let scales = self.lane_scales::<B>(g);
                let mut sum = _mm256_setzero_ps();
                for d in 0..DIGITS {
                    let digit = digit_sum::<B>(into_lanes(sums[d]), &scales, x, g, d);
                    sum = if d == 0 { digit } else { _mm256_fmadd_ps(sum, _mm256_set1_ps(BASE), digit) };
                }
                acc = add_group::<B>(sum, &scales, x, g, acc);
            }
        }
        acc
    }

    /// Asks for the bytes that lie one prefetch distance after the next four groups of the panel.
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    fn prefetch<B: Blocks>(&self, g: usize) {
        let group_bytes = B::BYTES * GROUP / B::DTYPE.block_elements();
        let ahead = self.ahead.of(self.rows[0].wrapping_add(g * group_bytes * ROWS));
        for line in (0..4 * group_bytes * ROWS).step_by(64) {
            _mm_prefetch::<_MM_HINT_T1>(ahead.wrapping_add(line).cast());
        }
    }

    /// Eight rows times many tokens, chunk by chunk of groups; running sums rest in `out`.
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn times_many<B: Blocks>(
        &self,
        x: &[QuantTile],
        panel: *mut Panel,
        out: &mut ColumnBlock,
        columns: Range<usize>,
    ) {
        for first in (0..self.groups).step_by(CHUNK) {
            let groups = first..self.groups.min(first + CHUNK);
            // SAFETY: the groups exist in every row, and fill the first entries of the panel.
            unsafe { unpack::<B>(panel, self, groups.clone()) };
            let mut first_token = 0;
            for tile in x {
                for start in (0..tile.width()).step_by(STRIP) {
                    let n = STRIP.min(tile.width() - start);
                    let mut acc = [_mm256_setzero_ps(); STRIP];
                    for t in 0..if first > 0 { n } else { 0 } {
                        acc[t] = load(out.cells(first_token + start + t, columns.clone()));
                    }
                    let part = Part { tile, first_token: start, groups: groups.clone() };
                    // SAFETY: the panel was filled with these groups, and the tile has them.
                    unsafe {
                        match tile.precision() {
                            Precision::Int8 => times_strip::<B, 1>(&*panel, &part, n, &mut acc),
                            Precision::Int16 => times_strip::<B, 2>(&*panel, &part, n, &mut acc),
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

/// 16 sums of pairs -> 8 sums of four.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn widen(words: __m256i) -> __m256i {
    _mm256_madd_epi16(words, _mm256_set1_epi16(1))
}

/// 32 products of signed bytes, summed by fours.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub fn products(w: __m256i, x: __m256i) -> __m256i {
    widen(_mm256_maddubs_epi16(_mm256_abs_epi8(w), _mm256_sign_epi8(x, w)))
}

/// Eight registers of eight partial sums -> lane r holds the sum of register r; low and high halves apart.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub fn into_lanes(s: [__m256i; ROWS]) -> Halves {
    let pairs = |a, b| _mm256_hadd_epi32(a, b);
    let a = pairs(pairs(s[0], s[1]), pairs(s[2], s[3]));
    let b = pairs(pairs(s[4], s[5]), pairs(s[6], s[7]));
    [_mm256_permute2x128_si256::<0x20>(a, b), _mm256_permute2x128_si256::<0x31>(a, b)]
}

/// What takes the bias of B's elements off a sum: the tile's numbers are made for `BIAS`.
#[inline(always)]
fn unbias<B: Blocks>(of_bias: i32) -> i32 {
    if is_unsigned::<B>() { of_bias / BIAS * B::BIAS } else { 0 }
}

/// The exact sum of one digit of a token that is alone in its tile, as floats.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn digit_sum<B: Blocks>(sums: Halves, w: &LaneScales, x: &QuantTile, g: usize, d: usize) -> __m256 {
    let unbias = |half: usize| _mm256_set1_epi32(unbias::<B>(x.unbias(g, d, half)[0]));
    if is_split::<B>() {
        let first = _mm256_cvtepi32_ps(_mm256_add_epi32(sums[0], unbias(0)));
        let second = _mm256_cvtepi32_ps(_mm256_add_epi32(sums[1], unbias(1)));
        _mm256_fmadd_ps(second, w.scale[1], _mm256_mul_ps(first, w.scale[0]))
    } else {
        _mm256_cvtepi32_ps(_mm256_add_epi32(_mm256_add_epi32(sums[0], sums[1]), unbias(2)))
    }
}

/// One step of the contract's dot product in eight lanes, for a token that is alone in its tile.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn add_group<B: Blocks>(sum: __m256, w: &LaneScales, x: &QuantTile, g: usize, acc: __m256) -> __m256 {
    let x_scale = _mm256_set1_ps(x.x_scale(g)[0]);
    let acc = _mm256_fmadd_ps(sum, _mm256_mul_ps(w.w_scale, x_scale), acc);
    match B::FORM {
        Form::Scale | Form::Split => acc,
        Form::ScaleMin => _mm256_fmadd_ps(w.w_min, _mm256_set1_ps(x.x_sum(g)[0]), acc),
        Form::SplitMin => {
            let half = |h: usize| _mm256_set1_ps(x.half_sums(g, h)[0] as f32);
            let min_sum = _mm256_fmadd_ps(w.min[1], half(1), _mm256_mul_ps(w.min[0], half(0)));
            _mm256_fmadd_ps(w.w_min, _mm256_mul_ps(min_sum, x_scale), acc)
        }
    }
}

/// Up to `CHUNK` groups of eight rows, unpacked.
#[repr(C, align(32))]
struct Panel {
    /// [group][element / 4][row], four bytes each: four activation bytes are broadcast against all rows
    q: [[__m256i; 8]; CHUNK],
    scales: [LaneScales; CHUNK],
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn unpack<B: Blocks>(panel: *mut Panel, rows: &PanelRows, groups: Range<usize>) {
    let sign = _mm256_set1_epi8(if is_unsigned::<B>() { 0 } else { -128 });
    for (i, g) in groups.enumerate() {
        // SAFETY: group `g` exists in every row; at most `CHUNK` entries of the panel are written.
        unsafe {
            let mut v = [_mm256_setzero_si256(); ROWS];
            for r in 0..ROWS {
                let (block, j) = rows.block::<B>(r, g);
                v[r] = _mm256_xor_si256(B::quants(block, j), sign);
            }
            (&raw mut (*panel).q[i]).write(transpose(v));
            (&raw mut (*panel).scales[i]).write(rows.lane_scales::<B>(g));
        }
    }
}

/// Groups of a tile, from some token on.
struct Part<'a> {
    tile: &'a QuantTile,
    first_token: usize,
    groups: Range<usize>,
}

/// Adds the products of the panel with `n` tokens of a tile to their accumulators.
///
/// # Safety
/// The panel holds these groups of a matrix of B's type, the tile has them in `DIGITS` digits.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn times_strip<B: Blocks, const DIGITS: usize>(panel: &Panel, x: &Part, n: usize, acc: &mut [__m256; STRIP]) {
    let bias = unbias::<B>(BIAS);
    // SAFETY: the caller's promise.
    unsafe {
        match (is_split::<B>(), has_min::<B>(), words_of::<B>()) {
            (false, false, 8) => times_n::<false, false, 8, DIGITS>(panel, x, n, bias, acc),
            (false, false, 4) => times_n::<false, false, 4, DIGITS>(panel, x, n, bias, acc),
            (false, false, _) => times_n::<false, false, 0, DIGITS>(panel, x, n, bias, acc),
            (false, true, 8) => times_n::<false, true, 8, DIGITS>(panel, x, n, bias, acc),
            (false, true, _) => times_n::<false, true, 4, DIGITS>(panel, x, n, bias, acc),
            (true, false, 8) => times_n::<true, false, 4, DIGITS>(panel, x, n, bias, acc),
            (true, false, _) => times_n::<true, false, 2, DIGITS>(panel, x, n, bias, acc),
            (true, true, _) => times_n::<true, true, 4, DIGITS>(panel, x, n, bias, acc),
        }
    }
}

#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn times_n<const SPLIT: bool, const MIN: bool, const WORDS: usize, const DIGITS: usize>(
    panel: &Panel,
    x: &Part,
    n: usize,
    bias: i32,
    acc: &mut [__m256; STRIP],
) {
    // SAFETY: the caller's promise.
    unsafe {
        match n {
            1 => times::<SPLIT, MIN, WORDS, DIGITS, 1>(panel, x, bias, acc),
            2 => times::<SPLIT, MIN, WORDS, DIGITS, 2>(panel, x, bias, acc),
            3 => times::<SPLIT, MIN, WORDS, DIGITS, 3>(panel, x, bias, acc),
            _ => times::<SPLIT, MIN, WORDS, DIGITS, STRIP>(panel, x, bias, acc),
        }
    }
}

/// The one shape of all products of many tokens: `N` tokens, `DIGITS` digits, scales by form.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn times<const SPLIT: bool, const MIN: bool, const WORDS: usize, const DIGITS: usize, const N: usize>(
    panel: &Panel,
    x: &Part,
    bias: i32,
    acc: &mut [__m256; STRIP],
) {
    let (tile, first, width) = (x.tile, x.first_token, x.tile.width());
    for (i, g) in x.groups.clone().enumerate() {
        let scales = &panel.scales[i];
        let mut total = [_mm256_setzero_ps(); N];
        for d in 0..DIGITS {
            // SAFETY: the quads of `N` tokens from `first` on of a digit of group `g`.
            let q = unsafe { tile.q(g, d).as_ptr().cast::<i32>().add(first) };
            let start = |t: usize, half: usize| _mm256_set1_epi32(tile.unbias(g, d, half)[first + t] / BIAS * bias);
            let mut digit = [_mm256_setzero_ps(); N];
            // SAFETY: as above.
            unsafe {
                if SPLIT {
                    let low = dot::<WORDS, N>(&panel.q[i], q, width, 0..4);
                    let high = dot::<WORDS, N>(&panel.q[i], q, width, 4..8);
                    for t in 0..N {
                        let low = _mm256_cvtepi32_ps(_mm256_add_epi32(low[t], start(t, 0)));
                        let high = _mm256_cvtepi32_ps(_mm256_add_epi32(high[t], start(t, 1)));
                        digit[t] = _mm256_fmadd_ps(high, scales.scale[1], _mm256_mul_ps(low, scales.scale[0]));
                    }
                } else {
                    let sums = dot::<WORDS, N>(&panel.q[i], q, width, 0..8);
                    for t in 0..N {
                        let sum = if MIN { sums[t] } else { _mm256_add_epi32(sums[t], start(t, 2)) };
                        digit[t] = _mm256_cvtepi32_ps(sum);
                    }
                }
            }
            for t in 0..N {
                total[t] = if d == 0 { digit[t] } else { _mm256_fmadd_ps(total[t], _mm256_set1_ps(BASE), digit[t]) };
            }
        }
        for t in 0..N {
            let x_scale = _mm256_set1_ps(tile.x_scale(g)[first + t]);
            acc[t] = _mm256_fmadd_ps(total[t], _mm256_mul_ps(scales.w_scale, x_scale), acc[t]);
            if MIN {
                let factor = if SPLIT {
                    let sum = |half: usize| _mm256_set1_ps(tile.half_sums(g, half)[first + t] as f32);
                    let first = _mm256_mul_ps(scales.min[0], sum(0));
                    _mm256_mul_ps(_mm256_fmadd_ps(scales.min[1], sum(1), first), x_scale)
                } else {
                    _mm256_set1_ps(tile.x_sum(g)[first + t])
                };
                acc[t] = _mm256_fmadd_ps(scales.w_min, factor, acc[t]);
            }
        }
    }
}

/// Integer sums of the `quads` of a group for `N` tokens, of which `width` lie side by side. `WORDS`: after how many
/// multiplications 16-bit sums are widened; 0: both sides are signed.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn dot<const WORDS: usize, const N: usize>(
    w: &[__m256i; 8],
    q: *const i32,
    width: usize,
    quads: Range<usize>,
) -> [__m256i; N] {
    let mut sums = [_mm256_setzero_si256(); N];
    let mut words = [_mm256_setzero_si256(); N];
    for k in quads.clone() {
        let step = k - quads.start;
        for t in 0..N {
            // SAFETY: four bytes of token `t`.
            let x = _mm256_set1_epi32(unsafe { q.add(k * width + t).read_unaligned() });
            if WORDS == 0 {
                sums[t] = _mm256_add_epi32(sums[t], products(w[k], x));
                continue;
            }
            let pairs = _mm256_maddubs_epi16(w[k], x);
            words[t] = if step.is_multiple_of(WORDS) { pairs } else { _mm256_add_epi16(words[t], pairs) };
            if step % WORDS == WORDS - 1 {
                let quads = widen(words[t]);
                sums[t] = if step < WORDS { quads } else { _mm256_add_epi32(sums[t], quads) };
            }
        }
    }
    sums
}

/// 8 x 8 transpose of dwords: register k of the result holds dword k of every input.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn transpose(v: [__m256i; ROWS]) -> [__m256i; 8] {
    let mut t = [_mm256_setzero_si256(); 8];
    for i in 0..4 {
        t[2 * i] = _mm256_unpacklo_epi32(v[2 * i], v[2 * i + 1]);
        t[2 * i + 1] = _mm256_unpackhi_epi32(v[2 * i], v[2 * i + 1]);
    }
    let mut u = [_mm256_setzero_si256(); 8];
    for i in 0..2 {
        let (a, b) = (4 * i, 4 * i + 2);
        u[a] = _mm256_unpacklo_epi64(t[a], t[b]);
        u[a + 1] = _mm256_unpackhi_epi64(t[a], t[b]);
        u[a + 2] = _mm256_unpacklo_epi64(t[a + 1], t[b + 1]);
        u[a + 3] = _mm256_unpackhi_epi64(t[a + 1], t[b + 1]);
    }
    let low = |i: usize| _mm256_permute2x128_si256::<0x20>(u[i], u[i + 4]);
    let high = |i: usize| _mm256_permute2x128_si256::<0x31>(u[i], u[i + 4]);
    [low(0), low(1), low(2), low(3), high(0), high(1), high(2), high(3)]
}
