//! One head row <-> its stored form: the plain codec that every device is held to.

use half::f16;

use super::layout::KvType;

/// `row` (head_dim) f32 -> `stored` (`KvType::row_bytes`).
pub fn encode(kv_type: KvType, row: &[f32], stored: &mut [u8]) {
    assert_eq!(stored.len(), kv_type.row_bytes(row.len()), "stored row");
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
    }
}

/// Consecutive stored rows -> `rows` f32. Exact for both types.
pub fn decode(kv_type: KvType, stored: &[u8], rows: &mut [f32]) {
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
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_survive_as_far_as_their_type_goes() {
        let row = [1.0, -0.1, 65504.0, 1e-7, 0.0, -2.5, 1e6, f32::MIN_POSITIVE];
        let mut back = [0f32; 8];
        let mut stored = [0u8; 32];
        encode(KvType::F32, &row, &mut stored);
        decode(KvType::F32, &stored, &mut back);
        assert_eq!(back, row);
        encode(KvType::F16, &row, &mut stored[..16]);
        decode(KvType::F16, &stored[..16], &mut back);
        assert_eq!(back[..3], [1.0, -0.099_975_586, 65504.0]);
        assert_eq!(back[6], f32::INFINITY);
    }
}
