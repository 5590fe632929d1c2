//! The small operations of a layer: norms, RoPE, residuals. Plain Rust on f32 whose operations the compiler may put
//! into SIMD but not reorder, so that they need no table.

use super::simd::Kernels;

/// out = x / sqrt(mean(x^2) + eps) * weight. Where the squares overflow the result is NaN: a scale of 0 would hide it.
pub fn rms_norm(kernels: &Kernels, x: &[f32], weight: &[f32], eps: f32, out: &mut [f32]) {
    let mean = (kernels.dot)(x, x) / x.len() as f32;
    let scale = if mean.is_finite() { 1.0 / (mean + eps).sqrt() } else { f32::NAN };
    for ((out, x), weight) in out.iter_mut().zip(x).zip(weight) {
        *out = x * scale * weight;
    }
}

/// Turns the adjacent pairs of every head by the angles of one position (head_dim / 2 cosines and sines).
pub fn rope(heads: &mut [f32], cos: &[f32], sin: &[f32]) {
    for head in heads.chunks_exact_mut(2 * cos.len()) {
        for ((pair, cos), sin) in head.as_chunks_mut::<2>().0.iter_mut().zip(cos).zip(sin) {
            let [a, b] = *pair;
            *pair = [a * cos - b * sin, a * sin + b * cos];
        }
    }
}

/// x += y
pub fn add(x: &mut [f32], y: &[f32]) {
    for (x, y) in x.iter_mut().zip(y) {
        *x += y;
    }
}

/// x += weight * y
pub fn add_scaled(x: &mut [f32], weight: f32, y: &[f32]) {
    for (x, y) in x.iter_mut().zip(y) {
        *x += weight * y;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::cpu::simd;

    #[test]
    fn squares_that_overflow_show_in_the_norm() {
        let kernels = simd::choose(None).unwrap();
        let mut out = [0f32; 32];
        rms_norm(kernels, &[2.0; 32], &[3.0; 32], 0.0, &mut out);
        assert_eq!(out, [3.0; 32]);
        rms_norm(kernels, &[1e38; 32], &[1.0; 32], 1e-5, &mut out);
        assert!(out.iter().all(|x| x.is_nan()));
    }
}
