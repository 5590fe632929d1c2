//! The one activation quantizer: f32 rows -> int8 groups of 32, as the arithmetic contract writes it.

use super::GROUP;

/// Largest magnitude of a quantized activation: the width of activations (8 bits) in one place.
pub const LEVELS: f32 = 127.0;

/// One activation row of `cols` elements in groups of 32.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct QuantRow {
    /// (cols) i8
    pub q: Vec<i8>,
    /// (cols / 32): max|x| / 127
    pub x_scale: Vec<f32>,
    /// (cols / 32): sum of the group's int8 values times x_scale, rounded once
    pub x_sum: Vec<f32>,
    /// (cols / 32): integer sums of both halves, for types with 16-element minima
    pub half_sums: Vec<[i32; 2]>,
}

impl QuantRow {
    /// Room for rows of up to `cols` elements.
    pub fn with_capacity(cols: usize) -> QuantRow {
        let groups = cols / GROUP;
        QuantRow {
            q: vec![0; cols],
            x_scale: vec![0.0; groups],
            x_sum: vec![0.0; groups],
            half_sums: vec![[0; 2]; groups],
        }
    }

    /// Bytes of a row made by `with_capacity`.
    pub const fn bytes(cols: usize) -> u64 {
        (size_of::<QuantRow>() + cols + cols / GROUP * (4 + 4 + 8)) as u64
    }

    /// The plain quantizer. A NaN or infinity anywhere in a group makes its scale non-finite, so that it reaches the
    /// logits instead of vanishing in the rounding.
    pub fn quantize(&mut self, x: &[f32]) {
        for (g, x) in x.as_chunks::<GROUP>().0.iter().enumerate() {
            let q = &mut self.q[g * GROUP..(g + 1) * GROUP];
            let (scale, inv) = scale_of(max_magnitude(x));
            for (q, x) in q.iter_mut().zip(x) {
                *q = round_to_level(x * inv);
            }
            let sum = |q: &[i8]| q.iter().map(|&q| i32::from(q)).sum::<i32>();
            let halves = [sum(&q[..16]), sum(&q[16..])];
            self.set_sums(g, scale, halves);
        }
    }

    /// Scale and sums of group `g`, whose halves of `q` sum to `halves`.
    pub fn set_sums(&mut self, g: usize, scale: f32, halves: [i32; 2]) {
        self.x_scale[g] = scale;
        self.half_sums[g] = halves;
        self.x_sum[g] = (halves[0] + halves[1]) as f32 * scale;
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
        let mut row = QuantRow::with_capacity(64);
        row.quantize(&x);
        assert_eq!((row.q[0], row.q[1], row.q[2], row.q[17]), (127, 0, 2, -127));
        assert_eq!(row.half_sums[0], [129, -127]);
        assert_eq!((row.x_scale[0], row.x_sum[0]), (1.0, 2.0));
        assert_eq!((row.x_scale[1], row.x_sum[1], &row.q[32..]), (0.0, 0.0, &[0i8; 32][..]));
    }

    #[test]
    fn non_finite_values_reach_the_scale() {
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let mut x = [1f32; 32];
            x[31] = bad;
            let mut row = QuantRow::with_capacity(32);
            row.quantize(&x);
            assert!(!row.x_scale[0].is_finite());
        }
    }
}
