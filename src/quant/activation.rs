//! The one activation quantizer: f32 rows -> int8 groups of 32, as the arithmetic contract writes it.

use super::GROUP;

/// Largest magnitude of a quantized activation: the width of activations (8 bits) in one place.
pub const LEVELS: f32 = 127.0;

/// Most tokens in a tile: what the widest kernel multiplies at once.
pub const TILE: usize = 8;

/// What kernels that multiply unsigned by signed bytes add to a signed weight, so that it is unsigned.
pub const BIAS: i32 = 128;

/// The quantized rows of up to `TILE` tokens, laid out as kernels read them: four bytes of one token are broadcast
/// against the same four elements of many weight rows, so those of all tokens of the tile lie side by side.
/// With one token this is simply the row.
#[derive(Clone, Debug, PartialEq)]
pub struct QuantTile {
    width: usize,
    /// (groups, 8, width, 4) i8
    q: Vec<i8>,
    /// (groups, width): max|x| / 127
    x_scale: Vec<f32>,
    /// (groups, width): sum of the group's int8 values times x_scale, rounded once
    x_sum: Vec<f32>,
    /// (groups, 2, width): integer sums of both halves, for types with 16-element minima
    half_sums: Vec<i32>,
    /// (groups, 3, width): -BIAS times the sum of the first half, of the second, of both: what takes `BIAS` off again
    unbias: Vec<i32>,
}

impl QuantTile {
    /// Room for rows of up to `cols` elements.
    pub fn with_capacity(cols: usize) -> QuantTile {
        let n = cols / GROUP * TILE;
        QuantTile {
            width: TILE,
            q: vec![0; n * GROUP],
            x_scale: vec![0.0; n],
            x_sum: vec![0.0; n],
            half_sums: vec![0; 2 * n],
            unbias: vec![0; 3 * n],
        }
    }

    /// Bytes of a tile made by `with_capacity`.
    pub const fn bytes(cols: usize) -> u64 {
        (size_of::<QuantTile>() + cols / GROUP * TILE * (GROUP + 4 + 4 + 8 + 12)) as u64
    }

    /// Elements per row that fit.
    pub fn capacity(&self) -> usize {
        self.q.len() / TILE
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
            let (scale, inv) = scale_of(max_magnitude(x));
            let q = x.map(|x| round_to_level(x * inv));
            let sum = |q: &[i8]| q.iter().map(|&q| i32::from(q)).sum::<i32>();
            self.put(token, g, &q, scale, [sum(&q[..16]), sum(&q[16..])]);
        }
    }

    /// Puts group `g` of a token, whose halves sum to `halves`, in its place.
    #[inline]
    pub fn put(&mut self, token: usize, g: usize, q: &[i8; GROUP], scale: f32, halves: [i32; 2]) {
        let width = self.width;
        let group = &mut self.q[g * GROUP * width..(g + 1) * GROUP * width];
        for (k, quad) in q.as_chunks::<4>().0.iter().enumerate() {
            group[(k * width + token) * 4..][..4].copy_from_slice(quad);
        }
        let sum = halves[0] + halves[1];
        self.x_scale[g * width + token] = scale;
        self.x_sum[g * width + token] = sum as f32 * scale;
        for (i, half) in halves.into_iter().enumerate() {
            self.half_sums[(2 * g + i) * width + token] = half;
        }
        for (i, sum) in [halves[0], halves[1], sum].into_iter().enumerate() {
            self.unbias[(3 * g + i) * width + token] = -BIAS * sum;
        }
    }

    /// (8, width, 4) i8 of group `g`.
    #[inline]
    pub fn q(&self, g: usize) -> &[i8] {
        &self.q[g * GROUP * self.width..(g + 1) * GROUP * self.width]
    }

    /// (width) of group `g`.
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

    /// (width) of a half of group `g`; half 2 is both.
    #[inline]
    pub fn unbias(&self, g: usize, half: usize) -> &[i32] {
        &self.unbias[(3 * g + half) * self.width..(3 * g + half + 1) * self.width]
    }

    /// Group `g` of a token, in the order of its elements.
    pub fn group(&self, g: usize, token: usize) -> [i8; GROUP] {
        std::array::from_fn(|i| self.q(g)[((i / 4) * self.width + token) * 4 + i % 4])
    }
}

/// max|x| by comparing bits: for non-negative floats the order of the bits is the order of the values, and NaN is above all.
pub fn max_magnitude(x: &[f32]) -> f32 {
    f32::from_bits(x.iter().map(|x| x.to_bits() & 0x7fff_ffff).max().unwrap_or(0))
}

/// (x_scale, 1 / x_scale or 0)
pub fn scale_of(max: f32) -> (f32, f32) {
    let scale = max / LEVELS;
    (scale, if scale == 0.0 { 0.0 } else { 1.0 / scale })
}

/// Clamp, then round to nearest even. `max` and `min` send NaN to the lower bound, as their SIMD forms do.
#[expect(clippy::manual_clamp, reason = "clamp would let NaN through")]
pub fn round_to_level(v: f32) -> i8 {
    v.max(-LEVELS).min(LEVELS).round_ties_even() as i8
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
        let mut tile = QuantTile::with_capacity(64);
        for width in [1, 3, TILE] {
            tile.set_width(width);
            for token in 0..width {
                tile.quantize(token, &x.map(|x| x * (token + 1) as f32));
            }
            for token in 0..width {
                let (q, n) = (tile.group(0, token), (token + 1) as f32);
                assert_eq!((q[0], q[1], q[2], q[17]), (127, 0, 2, -127));
                assert_eq!([tile.half_sums(0, 0)[token], tile.half_sums(0, 1)[token]], [129, -127]);
                assert_eq!(tile.unbias(0, 2)[token], -256);
                assert_eq!((tile.x_scale(0)[token], tile.x_sum(0)[token]), (n, 2.0 * n));
                assert_eq!((tile.x_scale(1)[token], tile.group(1, token)), (0.0, [0; 32]));
            }
        }
    }

    #[test]
    fn non_finite_values_reach_the_scale() {
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let mut x = [1f32; 32];
            x[31] = bad;
            let mut tile = QuantTile::with_capacity(32);
            tile.set_width(1);
            tile.quantize(0, &x);
            assert!(!tile.x_scale(0)[0].is_finite());
        }
    }
}
