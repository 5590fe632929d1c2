//! Quantized matrix products: eight rows in the lanes, groups in order, one accumulator per (row, token).
//!
//! One token (decode) reads the rows as they lie in the file and is bound by memory: per group of 32 and row the block's
//! bytes are read once, 5 integer operations multiply them and 7 adds per 8 rows bring the sums into the lanes.
//! More tokens (prefill) unpack a panel of 8 rows x up to 64 groups into the L1 cache once and use it for all of them:
//! per 32 x 8 products and token 8 x (broadcast, sign, two multiply-adds, add).
//!
//! Products of two int8 are formed as |w| * (x with the sign of w), because the hardware multiplies unsigned by signed:
//! 128 * 127 * 2 fits the intermediate 16 bits, so nothing saturates and every sum is exact.

use std::arch::x86_64::*;
use std::ops::Range;

use super::blocks::*;
use crate::backend::cpu::threads::ColumnBlock;
use crate::model::Matrix;
use crate::quant::activation::QuantTile;
use crate::quant::{DType, Form, GROUP};

/// Rows per panel.
const ROWS: usize = 8;
/// Groups per panel chunk: 16 KB of elements plus 6 KB of scales.
const CHUNK: usize = 64;
/// Tokens of a tile at once: four accumulators and four integer sums beside the weights fill the sixteen registers.
const STRIP: usize = 4;
/// How far ahead of the current panel memory is asked for. 32 KB into the L2 cache doubles the rate of cold reads.
const PREFETCH_BYTES: usize = 32 << 10;

/// `Kernels::matmul_quantized`.
#[target_feature(enable = "avx2,fma,f16c")]
pub fn matmul_quantized(w: &Matrix, rows: Range<usize>, x: &[QuantTile], out: &mut ColumnBlock, column: usize) {
    assert!(rows.end <= w.rows && x.iter().all(|x| x.capacity() >= w.cols), "shapes");
    assert!(!x.is_empty(), "no tokens");
    // SAFETY: the shapes were checked above, and each type is read by its own blocks.
    unsafe {
        match w.dtype {
            DType::Q4_0 => matmul::<Q4_0>(w, rows, x, out, column),
            DType::Q4_1 => matmul::<Q4_1>(w, rows, x, out, column),
            DType::Q5_0 => matmul::<Q5_0>(w, rows, x, out, column),
            DType::Q5_1 => matmul::<Q5_1>(w, rows, x, out, column),
            DType::Q8_0 => matmul::<Q8_0>(w, rows, x, out, column),
            DType::Q2_K => matmul::<Q2K>(w, rows, x, out, column),
            DType::Q3_K => matmul::<Q3K>(w, rows, x, out, column),
            DType::Q4_K => matmul::<Q4K>(w, rows, x, out, column),
            DType::Q5_K => matmul::<Q5K>(w, rows, x, out, column),
            DType::Q6_K => matmul::<Q6K>(w, rows, x, out, column),
            DType::IQ4_NL => matmul::<Iq4Nl>(w, rows, x, out, column),
            DType::IQ4_XS => matmul::<Iq4Xs>(w, rows, x, out, column),
            DType::MXFP4 => matmul::<Mxfp4>(w, rows, x, out, column),
            DType::F32 | DType::F16 | DType::BF16 => panic!("only quantized matrices come here"),
        }
    }
}

#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn matmul<B: Blocks>(w: &Matrix, rows: Range<usize>, x: &[QuantTile], out: &mut ColumnBlock, column: usize) {
    let is_one_token = x.len() == 1 && x[0].width() == 1;
    let mut panel = if is_one_token { None } else { Some(Panel::new()) };
    for start in rows.clone().step_by(ROWS) {
        let n = ROWS.min(rows.end - start);
        let row = PanelRows::new(w, start, n);
        let columns = column + start - rows.start..column + start - rows.start + n;
        // SAFETY: `row` points to whole rows of `w`, whose type is B's.
        unsafe {
            match &mut panel {
                None => store(row.times_one::<B>(&x[0]), out.cells(0, columns)),
                Some(panel) => row.times_many::<B>(x, panel, out, columns),
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
}

/// Scales of one group of eight rows, by `Form`.
#[derive(Clone, Copy)]
struct LaneScales {
    w_scale: __m256,
    w_min: __m256,
    scale: [__m256i; 2],
    min: [__m256i; 2],
}

/// Sums of products of one group in eight lanes, both halves of 16 elements apart.
pub type Halves = [__m256i; 2];

impl PanelRows {
    fn new(w: &Matrix, start: usize, n: usize) -> PanelRows {
        let rows = std::array::from_fn(|r| {
            let row = start + r.min(n - 1);
            w.rows_data(row..row + 1).as_ptr()
        });
        PanelRows { rows, groups: w.cols / GROUP }
    }

    /// The block of row `r` that holds group `g`, and the group's number in it.
    #[inline(always)]
    unsafe fn block<B: Blocks>(&self, r: usize, g: usize) -> (*const u8, usize) {
        let per_block = B::DTYPE.block_elements() / GROUP;
        // SAFETY: `g` is below `groups`, so the block lies in the row.
        (unsafe { self.rows[r].add(g / per_block * B::DTYPE.block_bytes()) }, g % per_block)
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
            let ints = |v: &[i32; ROWS]| _mm256_loadu_si256(v.as_ptr().cast());
            let scale = [ints(&scale[0]), ints(&scale[1])];
            let min = [ints(&min[0]), ints(&min[1])];
            let mut w_scale =
                if B::DTYPE as u32 == DType::MXFP4 as u32 { _mm256_loadu_ps(d32.as_ptr()) } else { halfs(&d) };
            let mut w_min = halfs(&m);
            if B::SCALED {
                w_scale = _mm256_mul_ps(w_scale, _mm256_cvtepi32_ps(scale[0]));
                w_min = _mm256_mul_ps(w_min, _mm256_cvtepi32_ps(min[0]));
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
    unsafe fn times_one<B: Blocks>(&self, x: &QuantTile) -> __m256 {
        let mut acc = _mm256_setzero_ps();
        for g in 0..self.groups {
            // SAFETY: group `g` exists in every row and in `x`; prefetches never fault.
            unsafe {
                if g % 4 == 0 {
                    self.prefetch::<B>(g);
                }
                let xq = _mm256_loadu_si256(x.q(g).as_ptr().cast());
                let mut sums = [_mm256_setzero_si256(); ROWS];
                for (r, sum) in sums.iter_mut().enumerate() {
                    let (block, j) = self.block::<B>(r, g);
                    *sum = products(B::quants(block, j), xq);
                }
                acc = add_group::<B>(into_lanes(sums), &self.lane_scales::<B>(g), x, g, 0, acc);
            }
        }
        acc
    }

    /// Asks for the bytes that lie one prefetch distance after the next four groups of the panel.
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    fn prefetch<B: Blocks>(&self, g: usize) {
        let group_bytes = B::DTYPE.block_bytes() * GROUP / B::DTYPE.block_elements();
        let ahead = self.rows[0].wrapping_add(PREFETCH_BYTES + g * group_bytes * ROWS);
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
                    let mut acc = [_mm256_setzero_ps(); STRIP];
                    if first > 0 {
                        for (t, acc) in acc.iter_mut().enumerate().take(n) {
                            *acc = load(out.cells(first_token + start + t, columns.clone()));
                        }
                    }
                    match n {
                        1 => panel.times::<B, 1>(tile, start, groups.clone(), &mut acc),
                        2 => panel.times::<B, 2>(tile, start, groups.clone(), &mut acc),
                        3 => panel.times::<B, 3>(tile, start, groups.clone(), &mut acc),
                        _ => panel.times::<B, STRIP>(tile, start, groups.clone(), &mut acc),
                    }
                    for (t, acc) in acc.iter().enumerate().take(n) {
                        store(*acc, out.cells(first_token + start + t, columns.clone()));
                    }
                }
                first_token += tile.width();
            }
        }
    }
}

/// 32 products of signed bytes, summed by fours.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub fn products(w: __m256i, x: __m256i) -> __m256i {
    let pairs = _mm256_maddubs_epi16(_mm256_abs_epi8(w), _mm256_sign_epi8(x, w));
    _mm256_madd_epi16(pairs, _mm256_set1_epi16(1))
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

/// One step of the contract's dot product in eight lanes, for one token of a tile.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn add_group<B: Blocks>(sums: Halves, w: &LaneScales, x: &QuantTile, g: usize, token: usize, acc: __m256) -> __m256 {
    let x_scale = _mm256_set1_ps(x.x_scale(g)[token]);
    let int_sum = match B::FORM {
        Form::Scale | Form::ScaleMin => _mm256_add_epi32(sums[0], sums[1]),
        Form::Split | Form::SplitMin => {
            _mm256_add_epi32(_mm256_mullo_epi32(sums[0], w.scale[0]), _mm256_mullo_epi32(sums[1], w.scale[1]))
        }
    };
    let acc = _mm256_fmadd_ps(_mm256_cvtepi32_ps(int_sum), _mm256_mul_ps(w.w_scale, x_scale), acc);
    match B::FORM {
        Form::Scale | Form::Split => acc,
        Form::ScaleMin => _mm256_fmadd_ps(w.w_min, _mm256_set1_ps(x.x_sum(g)[token]), acc),
        Form::SplitMin => {
            let half = |h: usize| _mm256_mullo_epi32(w.min[h], _mm256_set1_epi32(x.half_sums(g, h)[token]));
            let min_sum = _mm256_cvtepi32_ps(_mm256_add_epi32(half(0), half(1)));
            _mm256_fmadd_ps(w.w_min, _mm256_mul_ps(min_sum, x_scale), acc)
        }
    }
}

/// Up to `CHUNK` groups of eight rows, unpacked: `q[group][element / 4][row][4]`, so that four activation bytes can be
/// broadcast against all rows.
struct Panel {
    q: Box<[[__m256i; 8]; CHUNK]>,
    scales: Box<[LaneScales; CHUNK]>,
}

impl Panel {
    #[target_feature(enable = "avx2,fma,f16c")]
    fn new() -> Panel {
        let zero = _mm256_setzero_si256();
        let none = _mm256_setzero_ps();
        let scales = LaneScales { w_scale: none, w_min: none, scale: [zero; 2], min: [zero; 2] };
        Panel { q: Box::new([[zero; 8]; CHUNK]), scales: Box::new([scales; CHUNK]) }
    }

    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn unpack<B: Blocks>(&mut self, rows: &PanelRows, groups: Range<usize>) {
        for (i, g) in groups.enumerate() {
            // SAFETY: group `g` exists in every row.
            unsafe {
                let mut v = [_mm256_setzero_si256(); ROWS];
                for (r, v) in v.iter_mut().enumerate() {
                    let (block, j) = rows.block::<B>(r, g);
                    *v = B::quants(block, j);
                }
                self.q[i] = transpose(v);
                self.scales[i] = rows.lane_scales::<B>(g);
            }
        }
    }

    /// Adds the products of these groups with `N` tokens of a tile to their accumulators.
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    fn times<B: Blocks, const N: usize>(
        &self,
        x: &QuantTile,
        first_token: usize,
        groups: Range<usize>,
        acc: &mut [__m256; STRIP],
    ) {
        for (i, g) in groups.enumerate() {
            let quads = x.q(g).as_chunks::<4>().0;
            let half = |h: usize| {
                let mut sums = [_mm256_setzero_si256(); N];
                for (k, &w) in self.q[i].iter().enumerate().skip(4 * h).take(4) {
                    let x = &quads[k * x.width() + first_token..][..N];
                    for (sum, x) in sums.iter_mut().zip(x) {
                        let x = _mm256_set1_epi32(i32::from_ne_bytes(x.map(|x| x as u8)));
                        *sum = _mm256_add_epi32(*sum, products(w, x));
                    }
                }
                sums
            };
            let (low, high) = (half(0), half(1));
            for t in 0..N {
                acc[t] = add_group::<B>([low[t], high[t]], &self.scales[i], x, g, first_token + t, acc[t]);
            }
        }
    }
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
