//! ggml's blocks -> planes, row by row, without a rounding: the inverse of what kernels/forms.cuh reads.
//!
//! It runs once for every byte of a model, at about the speed of copying: blocks are walked once and words moved whole.

use half::f16;

use crate::backend::cuda::forms::PLANES;
use crate::quant::{DType, e8m0_half, scale_iq4xs, scale_q3};

/// The planes of some rows, each exactly as long as `Layout::plane_rows` says.
pub type Planes<'a> = [&'a mut [u8]; PLANES];

/// Whole rows of a matrix that follow each other, into the same rows of its planes.
pub fn repack(dtype: DType, source: &[u8], planes: Planes) {
    let [quants, high, scales, supers] = planes;
    match dtype {
        DType::F32 | DType::F16 | DType::BF16 => quants.copy_from_slice(source),
        DType::Q4_0 => blocks::<18>(source, |b, block| {
            scales[2 * b..][..2].copy_from_slice(&block[..2]);
            quants[16 * b..][..16].copy_from_slice(&block[2..]);
        }),
        DType::Q4_1 => blocks::<20>(source, |b, block| {
            scales[4 * b..][..4].copy_from_slice(&block[..4]);
            quants[16 * b..][..16].copy_from_slice(&block[4..]);
        }),
        DType::Q5_0 => blocks::<22>(source, |b, block| {
            scales[2 * b..][..2].copy_from_slice(&block[..2]);
            high[4 * b..][..4].copy_from_slice(&spread_bits(u32_at(block, 2)).to_le_bytes());
            quants[16 * b..][..16].copy_from_slice(&block[6..]);
        }),
        DType::Q5_1 => blocks::<24>(source, |b, block| {
            scales[4 * b..][..4].copy_from_slice(&block[..4]);
            high[4 * b..][..4].copy_from_slice(&spread_bits(u32_at(block, 4)).to_le_bytes());
            quants[16 * b..][..16].copy_from_slice(&block[8..]);
        }),
        DType::Q8_0 => blocks::<34>(source, |b, block| {
            scales[2 * b..][..2].copy_from_slice(&block[..2]);
            quants[32 * b..][..32].copy_from_slice(&block[2..]);
        }),
        DType::Q4_K => blocks::<144>(source, |b, block| {
            scales[16 * b..][..16].copy_from_slice(&block[..16]);
            put_nibble_pairs(quants, 8 * b, &block[16..]);
        }),
        DType::Q5_K => blocks::<176>(source, |b, block| {
            scales[16 * b..][..16].copy_from_slice(&block[..16]);
            put_nibble_pairs(quants, 8 * b, &block[48..]);
            for (group, high) in high[32 * b..][..32].as_chunks_mut::<4>().0.iter_mut().enumerate() {
                // bit `group` of byte i belongs to element i
                let bits = (0..8).map(|w| (u32_at(block, 16 + 4 * w) >> group & 0x0101_0101) << w);
                *high = bits.fold(0, |all, bits| all | bits).to_le_bytes();
            }
        }),
        DType::Q6_K => blocks::<210>(source, |b, block| {
            for group in 0..8 {
                let (half, part) = (group / 4, group % 4);
                let low: &[u8; 32] = bytes_at(block, 64 * half + 32 * (part % 2));
                put_nibbles(quants, 8 * b + group, low, 4 * (part as u32 / 2), 15);
                let bits = |quarter: usize| u64::from_le_bytes(*bytes_at(block, 128 + 32 * half + 8 * quarter));
                // eight elements at once: two bits of each byte
                let of = |quarter: usize| (bits(quarter) >> (2 * part) & 0x0303_0303_0303_0303) << (2 * quarter);
                let all = of(0) | of(1) | of(2) | of(3);
                high[64 * b + 8 * group..][..8].copy_from_slice(&all.to_le_bytes());
            }
            scales[16 * b..][..16].copy_from_slice(&block[192..208]);
            supers[2 * b..][..2].copy_from_slice(&block[208..]);
        }),
        DType::Q2_K => blocks::<84>(source, |b, block| {
            for group in 0..8 {
                let bits: &[u8; 32] = bytes_at(block, 16 + 32 * (group / 4));
                put_nibbles(quants, 8 * b + group, bits, 2 * (group as u32 % 4), 3);
            }
            scales[16 * b..][..16].copy_from_slice(&block[..16]);
            supers[4 * b..][..4].copy_from_slice(&block[80..]);
        }),
        DType::Q3_K => blocks::<110>(source, |b, block| {
            let third_bits: &[u8; 32] = bytes_at(block, 0);
            for group in 0..8 {
                let bits: &[u8; 32] = bytes_at(block, 32 + 32 * (group / 4));
                let shift = 2 * (group % 4);
                let q = std::array::from_fn(|i| (bits[i] >> shift & 3) | (third_bits[i] >> group & 1) << 2);
                put_nibbles(quants, 8 * b + group, &q, 0, 7);
            }
            let packed: &[u8; 12] = bytes_at(block, 96);
            for (k, scale) in scales[16 * b..][..16].iter_mut().enumerate() {
                *scale = scale_q3(packed, k) as u8;
            }
            supers[2 * b..][..2].copy_from_slice(&block[108..]);
        }),
        DType::IQ4_NL => blocks::<18>(source, |b, block| {
            scales[4 * b..][..4].copy_from_slice(&f16_at(block, 0).to_le_bytes());
            quants[16 * b..][..16].copy_from_slice(&block[2..]);
        }),
        DType::IQ4_XS => blocks::<136>(source, |b, block| {
            let (d, scales_h, scales_l) = (f16_at(block, 0), [block[2], block[3]], bytes_at(block, 4));
            for (group, scale) in scales[32 * b..][..32].as_chunks_mut::<4>().0.iter_mut().enumerate() {
                *scale = (d * scale_iq4xs(scales_h, scales_l, group) as f32).to_le_bytes();
            }
            quants[128 * b..][..128].copy_from_slice(&block[8..]);
        }),
        DType::MXFP4 => blocks::<17>(source, |b, block| {
            scales[4 * b..][..4].copy_from_slice(&e8m0_half(block[0]).to_le_bytes());
            quants[16 * b..][..16].copy_from_slice(&block[1..]);
        }),
    }
}

fn blocks<const BYTES: usize>(source: &[u8], mut each: impl FnMut(usize, &[u8; BYTES])) {
    let (blocks, rest) = source.as_chunks::<BYTES>();
    assert!(rest.is_empty(), "rows are whole blocks of {BYTES} bytes");
    blocks.iter().enumerate().for_each(|(b, block)| each(b, block));
}

fn bytes_at<const N: usize>(block: &[u8], at: usize) -> &[u8; N] {
    block[at..at + N].try_into().expect("the slice has that length")
}

fn u32_at(block: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(*bytes_at(block, at))
}

fn f16_at(block: &[u8], at: usize) -> f32 {
    f16::from_le_bytes(*bytes_at(block, at)).to_f32()
}

/// Bit i of a group's fifth bits to bit 8 * (i % 4) + i / 4.
fn spread_bits(bits: u32) -> u32 {
    // the product puts bit b of four to bit 8 * b
    (0..8).fold(0, |all, w| all | (((bits >> (4 * w) & 15) * 0x0020_4081) & 0x0101_0101) << w)
}

/// The 16 bytes of a group, byte i from the values of elements i and i + 16. Arrays, not slices: so that it becomes SIMD.
fn put_nibbles(quants: &mut [u8], group: usize, values: &[u8; 32], shift: u32, mask: u8) {
    let quants = &mut quants.as_chunks_mut::<16>().0[group];
    let (low, high): (&[u8; 16], &[u8; 16]) = (bytes_at(values, 0), bytes_at(values, 16));
    for i in 0..16 {
        quants[i] = (low[i] >> shift & mask) | (high[i] >> shift & mask) << 4;
    }
}

/// 256 nibbles whose groups 2p and 2p + 1 share the bytes 32p.., low and high halves.
fn put_nibble_pairs(quants: &mut [u8], first_group: usize, packed: &[u8]) {
    for (pair, packed) in packed.as_chunks::<32>().0.iter().enumerate() {
        put_nibbles(quants, first_group + 2 * pair, packed, 0, 15);
        put_nibbles(quants, first_group + 2 * pair + 1, packed, 4, 15);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::cuda::forms::{Form, Layout};
    use crate::quant::{GROUP, Group, group, scale_min};

    /// Group `g` of all rows, as kernels/forms.cuh reads it.
    fn group_of_planes(layout: &Layout, planes: &[Vec<u8>; PLANES], g: usize) -> Group {
        let [quants, high, scales, supers] = planes;
        let nibbles: [i32; GROUP] = std::array::from_fn(|i| i32::from(quants[16 * g + i % 16] >> (4 * (i / 16)) & 15));
        let fifth_bits = |i: usize| (u32_at(high, 4 * g) >> (8 * (i % 4) + i / 4) & 1) as i32;
        let (pair, f16_scale) = (|| [f16_at(scales, 4 * g), f16_at(scales, 4 * g + 2)], || f16_at(scales, 2 * g));
        let one = |q: [i32; GROUP], w_scale: f32, w_min: f32| (q, w_scale, [1, 1], w_min, [1, 1]);
        let super_block = || {
            let packed = &scales[16 * (g / 8)..][..16];
            let (scale, min) = scale_min(bytes_at(packed, 4), g % 8);
            (f16_at(packed, 0) * f32::from(scale), f16_at(packed, 2) * f32::from(min))
        };
        let i8_scales = || [0, 1].map(|half| i32::from(scales[2 * g + half] as i8));
        let (q, w_scale, sub_scale, w_min, sub_min) = match layout.form() {
            Form::Q4_0 => one(nibbles.map(|q| q - 8), f16_scale(), 0.0),
            Form::Q4_1 => one(nibbles, pair()[0], -pair()[1]),
            Form::Q5_0 => one(std::array::from_fn(|i| (nibbles[i] | fifth_bits(i) << 4) - 16), f16_scale(), 0.0),
            Form::Q5_1 => one(std::array::from_fn(|i| nibbles[i] | fifth_bits(i) << 4), pair()[0], -pair()[1]),
            Form::Q8_0 => one(std::array::from_fn(|i| i32::from(quants[32 * g + i] as i8)), f16_scale(), 0.0),
            Form::Q4_K => one(nibbles, super_block().0, super_block().1),
            Form::Q5_K => {
                one(std::array::from_fn(|i| nibbles[i] | fifth_bits(i) << 4), super_block().0, super_block().1)
            }
            Form::Q6_K => {
                let bits = |i: usize| i32::from(high[8 * g + i % 8] >> (2 * (i / 8)) & 3);
                let q = std::array::from_fn(|i| (nibbles[i] | bits(i) << 4) - 32);
                (q, f16_at(supers, g / 8 * 2), i8_scales(), 0.0, [1, 1])
            }
            Form::Codes => {
                let table = layout.table().expect("codes have a table");
                one(nibbles.map(|code| i32::from(table[code as usize])), f32::from_bits(u32_at(scales, 4 * g)), 0.0)
            }
            Form::Q2_K => {
                let both = [0, 1].map(|half| i32::from(scales[2 * g + half]));
                let (d, dmin) = (f16_at(supers, g / 8 * 4), f16_at(supers, g / 8 * 4 + 2));
                (nibbles, d, both.map(|s| s & 15), dmin, both.map(|s| s >> 4))
            }
            Form::Q3_K => (nibbles.map(|q| q - 4), f16_at(supers, g / 8 * 2), i8_scales(), 0.0, [1, 1]),
            Form::F32 | Form::F16 | Form::BF16 => panic!("floats have no groups"),
        };
        Group { q: q.map(|q| q as i8), w_scale, sub_scale, w_min, sub_min }
    }

    /// Random bytes, but for scales, which are all finite: NaN is unequal to itself.
    fn random_blocks(dtype: DType, bytes: usize) -> Vec<u8> {
        let mut state = 0x9e37_79b9_7f4a_7c15u64 ^ u64::from(dtype.id());
        let mut random = || {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (state >> 33) as u8
        };
        let mut data: Vec<u8> = (0..bytes).map(|_| random()).collect();
        let scale_bytes: &[usize] = match dtype {
            DType::Q4_1 | DType::Q5_1 | DType::Q4_K | DType::Q5_K => &[1, 3],
            DType::Q4_0 | DType::Q5_0 | DType::Q8_0 | DType::IQ4_NL | DType::IQ4_XS => &[1],
            DType::Q2_K => &[81, 83],
            DType::Q3_K => &[109],
            DType::Q6_K => &[209],
            DType::MXFP4 | DType::F32 | DType::F16 | DType::BF16 => &[],
        };
        for block in data.chunks_exact_mut(dtype.block_bytes()) {
            for &at in scale_bytes {
                block[at] &= 0xbf;
            }
        }
        data
    }

    fn repacked(layout: &Layout, source: &[u8]) -> [Vec<u8>; PLANES] {
        let mut planes: [Vec<u8>; PLANES] =
            std::array::from_fn(|plane| vec![0x5a; layout.plane_rows(plane, 0..layout.rows).len()]);
        // in two parts, as threads do it
        let half = layout.rows / 2;
        let cut = source.len() / layout.rows * half;
        let mut parts = planes.each_mut().map(|plane| {
            let middle = plane.len() / layout.rows * half;
            let (first, second) = plane.split_at_mut(middle);
            (Some(first), Some(second))
        });
        repack(layout.dtype, &source[..cut], parts.each_mut().map(|(first, _)| first.take().expect("taken once")));
        repack(layout.dtype, &source[cut..], parts.each_mut().map(|(_, second)| second.take().expect("taken once")));
        planes
    }

    #[test]
    fn planes_hold_the_values_of_every_group() {
        for dtype in DType::ALL.into_iter().filter(|dtype| dtype.is_quantized()) {
            let layout = Layout::new(dtype, 5, 768);
            let source = random_blocks(dtype, 5 * dtype.row_bytes(768).expect("whole blocks") as usize);
            let planes = repacked(&layout, &source);
            for (row, source) in source.chunks_exact(source.len() / 5).enumerate() {
                for g in 0..768 / GROUP {
                    let (made, want) =
                        (group_of_planes(&layout, &planes, row * 768 / GROUP + g), group(dtype, source, g));
                    assert_eq!(made, want, "{}, row {row}, group {g}", dtype.name());
                }
            }
        }
    }

    #[test]
    fn floats_stay_as_they_are() {
        for dtype in [DType::F32, DType::F16, DType::BF16] {
            let layout = Layout::new(dtype, 4, 33);
            let source: Vec<u8> = (0..4 * 33 * dtype.block_bytes()).map(|i| i as u8).collect();
            assert_eq!(repacked(&layout, &source)[0], source);
        }
    }
}
