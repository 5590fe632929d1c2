//! The one activation quantizer: f32 rows -> groups of 32 in one or two int8 digits, as the arithmetic contract writes it.

use super::GROUP;

/// Largest magnitude of a digit. -128 never occurs: kernels may change its sign and add products in pairs.
pub const LEVELS: f32 = 127.0;

/// What the first of two digits counts. 255 * 127 + 127 = 32,512 levels to each side, 99 % of 16 bits, and each has exactly
/// one form with both digits within 127 (255 is odd: no value lies halfway).
pub const BASE: f32 = 255.0;

/// Most tokens in a tile: what the widest kernel multiplies at once.
pub const TILE: usize = 8;

/// What kernels that multiply unsigned by signed bytes add to a signed weight, so that it is unsigned.
pub const BIAS: i32 = 128;

/// int8 digits of an activation: how precisely it is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Precision {
    /// One digit: 127 levels to each side.
    Int8,
    /// Two digits: 32,512 levels to each side.
    Int16,
}

impl Precision {
    pub const fn digits(self) -> usize {
        match self {
            Precision::Int8 => 1,
            Precision::Int16 => 2,
        }
    }

    const fn levels(self) -> f32 {
        match self {
            Precision::Int8 => LEVELS,
            Precision::Int16 => BASE * LEVELS + LEVELS,
        }
    }

    /// (x_scale, 1 / x_scale or 0) for a group of magnitude `max`.
    pub fn scale_of(self, max: f32) -> (f32, f32) {
        let scale = max / self.levels();
        (scale, if scale == 0.0 { 0.0 } else { 1.0 / scale })
    }
}

/// A group of 32 elements in one digit, and its sums over both halves.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Digit {
    pub q: [i8; GROUP],
    pub half_sums: [i32; 2],
}

impl Digit {
    fn new(q: [i8; GROUP]) -> Digit {
        let sum = |q: &[i8]| q.iter().map(|&q| i32::from(q)).sum();
        Digit { q, half_sums: [sum(&q[..16]), sum(&q[16..])] }
    }
}

/// The quantized rows of up to `TILE` tokens, laid out as kernels read them: four bytes of one token are broadcast
/// against the same four elements of many weight rows, so those of all tokens of the tile lie side by side.
/// With one token and one digit this is simply the row. The first digit of two is the one that counts 255.
#[derive(Clone, Debug, PartialEq)]
pub struct QuantTile {
    precision: Precision,
    width: usize,
    /// (groups, digits, 8, width, 4) i8
    q: Vec<i8>,
    /// (groups, width): max|x| / levels
    x_scale: Vec<f32>,
    /// (groups, width): sum of the group's levels times x_scale, rounded once
    x_sum: Vec<f32>,
    /// (groups, 2, width): sums of the levels of both halves, for types with 16-element minima
    half_sums: Vec<i32>,
    /// (groups, digits, 3, width): -BIAS times the digit's sum over the first half, the second, both: takes `BIAS` off again
    unbias: Vec<i32>,
}

impl QuantTile {
    /// Room for rows of up to `cols` elements.
    pub fn with_capacity(precision: Precision, cols: usize) -> QuantTile {
        let (n, digits) = (cols / GROUP * TILE, precision.digits());
        QuantTile {
            precision,
            width: TILE,
            q: vec![0; digits * n * GROUP],
            x_scale: vec![0.0; n],
            x_sum: vec![0.0; n],
            half_sums: vec![0; 2 * n],
            unbias: vec![0; digits * 3 * n],
        }
    }

    /// Bytes of a tile made by `with_capacity`.
    pub const fn bytes(precision: Precision, cols: usize) -> u64 {
        let per_group = 4 + 4 + 8 + precision.digits() * (GROUP + 12);
        (size_of::<QuantTile>() + cols / GROUP * TILE * per_group) as u64
    }

    /// Elements per row that fit.
    pub fn capacity(&self) -> usize {
        self.q.len() / TILE / self.digits()
    }

    pub fn precision(&self) -> Precision {
        self.precision
    }

    pub fn digits(&self) -> usize {
        self.precision.digits()
    }

    pub fn width(&self) -> usize {
        self.width
    }

    /// How many tokens come next; their old contents are void.
    pub fn set_width(&mut self, width: usize) {
        assert!((1..=TILE).contains(&width), "a tile of {width} tokens");
        self.width = width;
    }

    /// The plain quantizer: row `token` of the tile. A NaN or infinity anywhere in a group makes its scale non-finite,
    /// so that it reaches the logits instead of vanishing in the rounding.
    pub fn quantize(&mut self, token: usize, x: &[f32]) {
        for (g, x) in x.as_chunks::<GROUP>().0.iter().enumerate() {
            let (scale, inv) = self.precision.scale_of(max_magnitude(x));
            match self.precision {
                Precision::Int8 => self.put(token, g, scale, &[Digit::new(x.map(|x| round_to_level(x * inv)))]),
                Precision::Int16 => {
                    let levels = x.map(|x| round_within(x * inv, self.precision.levels()));
                    let high = levels.map(|level| (level * (1.0 / BASE)).round_ties_even());
                    let low = std::array::from_fn(|i| (levels[i] - BASE * high[i]) as i8);
                    self.put(token, g, scale, &[Digit::new(high.map(|high| high as i8)), Digit::new(low)]);
                }
            }
        }
    }

    /// Puts group `g` of a token in its place: one digit, or the one that counts 255 and the other.
    #[inline]
    pub fn put(&mut self, token: usize, g: usize, scale: f32, digits: &[Digit]) {
        let (width, n_digits) = (self.width, self.digits());
        assert_eq!(digits.len(), n_digits, "digits");
        let mut half_sums = [0; 2];
        for (d, digit) in digits.iter().enumerate() {
            let at = g * n_digits + d;
            let group = &mut self.q[at * GROUP * width..(at + 1) * GROUP * width];
            for (k, quad) in digit.q.as_chunks::<4>().0.iter().enumerate() {
                group[(k * width + token) * 4..][..4].copy_from_slice(quad);
            }
            let [first, second] = digit.half_sums;
            for (i, sum) in [first, second, first + second].into_iter().enumerate() {
                self.unbias[(3 * at + i) * width + token] = -BIAS * sum;
            }
            half_sums = [0, 1].map(|half| half_sums[half] * BASE as i32 + digit.half_sums[half]);
        }
        self.x_scale[g * width + token] = scale;
        self.x_sum[g * width + token] = (half_sums[0] + half_sums[1]) as f32 * scale;
        for (half, sum) in half_sums.into_iter().enumerate() {
            self.half_sums[(2 * g + half) * width + token] = sum;
        }
    }

    /// (8, width, 4) i8 of a digit of group `g`; those of further digits and groups follow.
    #[inline]
    pub fn q(&self, g: usize, digit: usize) -> &[i8] {
        let at = g * self.digits() + digit;
        &self.q[at * GROUP * self.width..(at + 1) * GROUP * self.width]
    }

    /// (width) of group `g`; those of further groups follow.
    #[inline]
    pub fn x_scale(&self, g: usize) -> &[f32] {
        &self.x_scale[g * self.width..(g + 1) * self.width]
    }

    /// (width) of group `g`.
    #[inline]
    pub fn x_sum(&self, g: usize) -> &[f32] {
        &self.x_sum[g * self.width..(g + 1) * self.width]
    }

    /// (width) of a half of group `g`.
    #[inline]
    pub fn half_sums(&self, g: usize, half: usize) -> &[i32] {
        &self.half_sums[(2 * g + half) * self.width..(2 * g + half + 1) * self.width]
    }

    /// (width) of a half of group `g` in a digit; half 2 is both.
    #[inline]
    pub fn unbias(&self, g: usize, digit: usize, half: usize) -> &[i32] {
        let at = 3 * (g * self.digits() + digit) + half;
        &self.unbias[at * self.width..(at + 1) * self.width]
    }

    /// A digit of group `g` of a token, in the order of its elements.
    pub fn group(&self, g: usize, digit: usize, token: usize) -> [i8; GROUP] {
        std::array::from_fn(|i| self.q(g, digit)[((i / 4) * self.width + token) * 4 + i % 4])
    }
}

/// max|x| by comparing bits: for non-negative floats the order of the bits is the order of the values, and NaN is above all.
pub fn max_magnitude(x: &[f32]) -> f32 {
    f32::from_bits(x.iter().map(|x| x.to_bits() & 0x7fff_ffff).max().unwrap_or(0))
}

/// Clamp, then round to nearest even. `max` and `min` send NaN to the lower bound, as their SIMD forms do.
fn round_within(v: f32, levels: f32) -> f32 {
    v.max(-levels).min(levels).round_ties_even()
}

/// The same for one digit.
pub fn round_to_level(v: f32) -> i8 {
    round_within(v, LEVELS) as i8
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantizes_by_the_contract() {
        let mut x = [0f32; 64];
        x[0] = 127.0;
        x[1] = -0.5; // ties go to even: 0
        x[2] = 1.5; // 2
        x[17] = -126.6;
        let mut tile = QuantTile::with_capacity(Precision::Int8, 64);
        for width in [1, 3, TILE] {
            tile.set_width(width);
            for token in 0..width {
                tile.quantize(token, &x.map(|x| x * (token + 1) as f32));
            }
            for token in 0..width {
                let (q, n) = (tile.group(0, 0, token), (token + 1) as f32);
                assert_eq!((q[0], q[1], q[2], q[17]), (127, 0, 2, -127));
                assert_eq!([tile.half_sums(0, 0)[token], tile.half_sums(0, 1)[token]], [129, -127]);
                assert_eq!(tile.unbias(0, 0, 2)[token], -256);
                assert_eq!((tile.x_scale(0)[token], tile.x_sum(0)[token]), (n, 2.0 * n));
                assert_eq!((tile.x_scale(1)[token], tile.group(1, 0, token)), (0.0, [0; 32]));
            }
        }
    }

    #[test]
    fn two_digits_make_every_level() {
        let mut tile = QuantTile::with_capacity(Precision::Int16, 32);
        tile.set_width(2);
        for first in (-32_512..=32_512).step_by(31) {
            // 31 levels that follow each other, and the largest one, so that the scale is 1
            let level = |i: usize| if i == 31 { 32_512 } else { (first + i as i32).min(32_512) };
            tile.quantize(1, &std::array::from_fn::<f32, 32, _>(|i| level(i) as f32));
            let (high, low) = (tile.group(0, 0, 1), tile.group(0, 1, 1));
            for i in 0..32 {
                assert_eq!(255 * i32::from(high[i]) + i32::from(low[i]), level(i));
                assert!(high[i] >= -127 && low[i] >= -127);
            }
            let sum = |from: usize| (from..from + 16).map(level).sum::<i32>();
            assert_eq!([tile.half_sums(0, 0)[1], tile.half_sums(0, 1)[1]], [sum(0), sum(16)]);
            assert_eq!(tile.x_sum(0)[1], (sum(0) + sum(16)) as f32);
            assert_eq!(tile.unbias(0, 1, 2)[1], -128 * low.iter().map(|&q| i32::from(q)).sum::<i32>());
        }
    }

    #[test]
    fn non_finite_values_reach_the_scale() {
        for precision in [Precision::Int8, Precision::Int16] {
            for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
                let mut x = [1f32; 32];
                x[31] = bad;
                let mut tile = QuantTile::with_capacity(precision, 32);
                tile.set_width(1);
                tile.quantize(0, &x);
                assert!(!tile.x_scale(0)[0].is_finite());
            }
        }
    }
}
