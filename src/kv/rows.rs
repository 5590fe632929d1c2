//! One head row <-> its stored form: the plain codec that every device is held to.
//!
//! A rotated type stores H x instead of x, where H is the orthonormal Hadamard transform (its own inverse): an outlier in
//! one element spreads over all of them, and the int8 steps get finer. q is rotated with K, so scores do not change; what
//! V's rotation did is undone on the attention output, once per head and token.

use half::f16;

use super::layout::KvType;

/// Largest stored magnitude of an int8 element.
const LEVELS: f32 = 127.0;

/// `row` (head_dim) f32, rotated where the type asks for it -> `stored` elements (`KvType::row_bytes`) and their `scale`
/// (`KvType::scale_bytes`).
pub fn encode(kv_type: KvType, row: &[f32], stored: &mut [u8], scale: &mut [u8]) {
    assert_eq!((stored.len(), scale.len()), (kv_type.row_bytes(row.len()), kv_type.scale_bytes()), "stored row");
    match kv_type {
        KvType::F32 => {
            for (bytes, x) in stored.as_chunks_mut::<4>().0.iter_mut().zip(row) {
                *bytes = x.to_le_bytes();
            }
        }
        KvType::F16 => {
            for (bytes, x) in stored.as_chunks_mut::<2>().0.iter_mut().zip(row) {
                *bytes = f16::from_f32(*x).to_le_bytes();
            }
        }
        #[expect(clippy::manual_clamp, reason = "max and min send NaN to a bound, as their SIMD forms do")]
        KvType::Int8 => {
            // compared as bits: for magnitudes the order of the bits is the order of the values, and NaN is above all
            let max = row.iter().map(|x| x.to_bits() & 0x7fff_ffff).max().unwrap_or(0);
            let (bytes, inv) = int8_scale(f32::from_bits(max));
            scale.copy_from_slice(&bytes);
            for (byte, x) in stored.iter_mut().zip(row) {
                *byte = (x * inv).max(-LEVELS).min(LEVELS).round_ties_even() as i8 as u8;
            }
        }
    }
}

/// The f16 scale of a row of magnitude `max`, and what its values are multiplied with: 1 / scale as stored, 0 for 0.
pub fn int8_scale(max: f32) -> ([u8; 2], f32) {
    let scale = f16::from_f32(max / LEVELS);
    let inv = if scale == f16::ZERO { 0.0 } else { 1.0 / scale.to_f32() };
    (scale.to_le_bytes(), inv)
}

/// The elements of stored rows as f32: the values of float types, the integers of int8 rows. Exact.
pub fn widen(kv_type: KvType, stored: &[u8], rows: &mut [f32]) {
    assert_eq!(stored.len(), kv_type.row_bytes(rows.len()), "stored rows");
    match kv_type {
        KvType::F32 => {
            for (x, bytes) in rows.iter_mut().zip(stored.as_chunks::<4>().0) {
                *x = f32::from_le_bytes(*bytes);
            }
        }
        KvType::F16 => {
            for (x, bytes) in rows.iter_mut().zip(stored.as_chunks::<2>().0) {
                *x = f16::from_le_bytes(*bytes).to_f32();
            }
        }
        KvType::Int8 => {
            for (x, byte) in rows.iter_mut().zip(stored) {
                *x = f32::from(*byte as i8);
            }
        }
    }
}

/// Orthonormal Hadamard transform of a head, its own inverse. A head whose length is no power of two is turned in
/// equal parts of the largest power of two that divides it (80 = 5 x 16).
pub fn rotate(head: &mut [f32]) {
    let part = 1 << head.len().trailing_zeros();
    let norm = 1.0 / (part as f32).sqrt();
    for x in head.chunks_exact_mut(part) {
        let mut width = 1;
        while width < part {
            for pair in x.chunks_exact_mut(2 * width) {
                let (a, b) = pair.split_at_mut(width);
                for (a, b) in a.iter_mut().zip(b) {
                    (*a, *b) = (*a + *b, *a - *b);
                }
            }
            width *= 2;
        }
        x.iter_mut().for_each(|x| *x *= norm);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn there_and_back(kv_type: KvType, row: &[f32]) -> Vec<f32> {
        let (mut stored, mut scale) = (vec![0u8; kv_type.row_bytes(row.len())], vec![0u8; kv_type.scale_bytes()]);
        let mut back = vec![0f32; row.len()];
        encode(kv_type, row, &mut stored, &mut scale);
        widen(kv_type, &stored, &mut back);
        if let [low, high] = scale[..] {
            back.iter_mut().for_each(|x| *x *= f16::from_le_bytes([low, high]).to_f32());
        }
        back
    }

    #[test]
    fn rows_survive_as_far_as_their_type_goes() {
        let row = [1.0, -0.1, 65504.0, 1e-7, 0.0, -2.5, 1e6, f32::MIN_POSITIVE];
        assert_eq!(there_and_back(KvType::F32, &row), row);
        let back = there_and_back(KvType::F16, &row);
        assert_eq!(back[..3], [1.0, -0.099_975_586, 65504.0]);
        assert_eq!(back[6], f32::INFINITY);
        assert_eq!(there_and_back(KvType::Int8, &[0.0; 16]), [0.0; 16]);
        assert_eq!(there_and_back(KvType::Int8, &[127.0, -63.4, 0.5, 1.5]), [127.0, -63.0, 0.0, 2.0]);
        assert!(there_and_back(KvType::Int8, &[1.0, f32::NAN])[0].is_nan(), "damage must show");
    }

    proptest! {
        /// Half a step of the stored scale, plus what rounding the scale to f16 may clip at the top.
        #[test]
        fn int8_misses_by_half_a_step(row in prop::collection::vec(-100f32..100.0, 64)) {
            let max = row.iter().fold(0f32, |max, x| max.max(x.abs()));
            for (x, back) in row.iter().zip(there_and_back(KvType::Int8, &row)) {
                prop_assert!((x - back).abs() <= max / 127.0 * 0.5 + max / 1024.0, "{} became {}", x, back);
            }
        }

        #[test]
        fn rotating_twice_is_nothing_and_keeps_dot_products(
            a in prop::collection::vec(-10f32..10.0, 80), b in prop::collection::vec(-10f32..10.0, 80)
        ) {
            let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| f64::from(a * b)).sum::<f64>();
            let (mut ra, mut rb) = (a.clone(), b.clone());
            rotate(&mut ra);
            rotate(&mut rb);
            prop_assert!((dot(&a, &b) - dot(&ra, &rb)).abs() < 1e-2);
            rotate(&mut ra);
            prop_assert!(a.iter().zip(&ra).all(|(a, b)| (a - b).abs() < 1e-4));
        }
    }

    #[test]
    fn an_outlier_spreads_over_the_head() {
        let mut head = [0f32; 64];
        head[5] = 8.0;
        rotate(&mut head);
        assert!(head.iter().all(|x| x.abs() == 1.0));
    }
}
