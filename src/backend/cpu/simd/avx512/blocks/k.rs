//! Types of 256 elements a block: one block is a unit of eight groups.

use std::arch::x86_64::*;

use super::super::super::avx2::blocks::{Blocks, Iq4Xs, Q2K, Q3K, Q4K, Q5K, Q6K};
use super::{Column, LaneScales, Wide, bits, dwords, halfs, iq4_values, load4, minus, transpose, words};

/// What a block of sixteen rows holds beside its elements.
#[derive(Clone, Copy)]
pub struct Head {
    d: __m512,
    m: __m512,
    /// Integer scales, four bytes a lane, as the type packs them.
    ints: [__m512i; 4],
}

/// Byte `BYTE` of every dword, unsigned.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
fn byte<const BYTE: usize>(v: __m512i) -> __m512i {
    let shifted = match BYTE {
        0 => v,
        1 => _mm512_srli_epi32::<8>(v),
        2 => _mm512_srli_epi32::<16>(v),
        _ => _mm512_srli_epi32::<24>(v),
    };
    _mm512_and_si512(shifted, _mm512_set1_epi32(255))
}

/// d * scale and -(dmin * min): exact products.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
fn scaled(head: &Head, scale: __m512i, min: __m512i) -> LaneScales {
    let none = _mm512_setzero_ps();
    LaneScales {
        w_scale: _mm512_mul_ps(head.d, _mm512_cvtepi32_ps(scale)),
        w_min: minus(_mm512_mul_ps(head.m, _mm512_cvtepi32_ps(min))),
        scale: [none; 2],
        min: [none; 2],
    }
}

/// d, and integer scales (and minima) of both halves.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
fn split(head: &Head, scale: [__m512i; 2], min: [__m512i; 2]) -> LaneScales {
    LaneScales {
        w_scale: head.d,
        w_min: head.m,
        scale: [_mm512_cvtepi32_ps(scale[0]), _mm512_cvtepi32_ps(scale[1])],
        min: [_mm512_cvtepi32_ps(min[0]), _mm512_cvtepi32_ps(min[1])],
    }
}

/// Head of Q4_K and Q5_K: d, dmin, then scales 0..4, 4..8, minima 0..4, 4..8 unpacked to bytes.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
unsafe fn k_head(column: Column) -> Head {
    // SAFETY: the caller's blocks start with sixteen bytes of head.
    let [d, low_scale, low_min, mixed] = unsafe { dwords(column, 0) };
    let and = |v: __m512i, mask: i32| _mm512_and_si512(v, _mm512_set1_epi32(mask));
    let top = |v: __m512i| and(_mm512_srli_epi32::<2>(v), 0x3030_3030);
    Head {
        d: halfs(d),
        m: halfs(_mm512_srli_epi32::<16>(d)),
        ints: [
            and(low_scale, 0x3f3f_3f3f),
            _mm512_or_si512(and(mixed, 0x0f0f_0f0f), top(low_scale)),
            and(low_min, 0x3f3f_3f3f),
            _mm512_or_si512(and(_mm512_srli_epi32::<4>(mixed), 0x0f0f_0f0f), top(low_min)),
        ],
    }
}

/// Scale and minimum of group `J` of Q4_K and Q5_K.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
fn k_scales<const J: usize>(head: &Head) -> LaneScales {
    let pick = |v: __m512i| match J % 4 {
        0 => byte::<0>(v),
        1 => byte::<1>(v),
        2 => byte::<2>(v),
        _ => byte::<3>(v),
    };
    scaled(head, pick(head.ints[J / 4]), pick(head.ints[2 + J / 4]))
}

/// Nibbles of group `J` of a K type: groups 2p and 2p + 1 share 32 bytes.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
unsafe fn k_nibbles<const J: usize>(column: Column, r: usize, at: usize) -> [__m512i; 2] {
    // SAFETY: the caller's column holds these bytes.
    let v = unsafe { [load4(column, r, at + 32 * (J / 2)), load4(column, r, at + 32 * (J / 2) + 16)] };
    if J.is_multiple_of(2) {
        [bits::<0>(v[0], 15), bits::<0>(v[1], 15)]
    } else {
        [bits::<4>(v[0], 15), bits::<4>(v[1], 15)]
    }
}

impl Wide for Q4K {
    const UNIT: usize = 8;
    type Head = Head;
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
    unsafe fn wide_quants<const J: usize>(column: Column, r: usize) -> [__m512i; 2] {
        // SAFETY: the caller's column.
        unsafe { k_nibbles::<J>(column, r, 16) }
    }
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
    unsafe fn head(column: Column) -> Head {
        // SAFETY: the caller's column.
        unsafe { k_head(column) }
    }
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
    unsafe fn lane_scales<const J: usize>(head: &Head) -> LaneScales {
        k_scales::<J>(head)
    }
}

impl Wide for Q5K {
    const UNIT: usize = 8;
    type Head = Head;
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
    unsafe fn wide_quants<const J: usize>(column: Column, r: usize) -> [__m512i; 2] {
        // SAFETY: the caller's column.
        let (low, high) = unsafe { (k_nibbles::<J>(column, r, 48), [load4(column, r, 16), load4(column, r, 32)]) };
        let (bit, sixteen) = (_mm512_set1_epi8(1u8.wrapping_shl(J as u32) as i8), _mm512_set1_epi8(16));
        let with_fifth =
            |low: __m512i, high: __m512i| _mm512_mask_add_epi8(low, _mm512_test_epi8_mask(high, bit), low, sixteen);
        [with_fifth(low[0], high[0]), with_fifth(low[1], high[1])]
    }
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
    unsafe fn head(column: Column) -> Head {
        // SAFETY: the caller's column.
        unsafe { k_head(column) }
    }
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
    unsafe fn lane_scales<const J: usize>(head: &Head) -> LaneScales {
        k_scales::<J>(head)
    }
}

impl Wide for Q6K {
    const UNIT: usize = 8;
    type Head = Head;
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
    unsafe fn wide_quants<const J: usize>(column: Column, r: usize) -> [__m512i; 2] {
        let (half, part) = (J / 4, J % 4);
        let six = |i: usize| {
            // SAFETY: the caller's column.
            let (low, high) = unsafe {
                (load4(column, r, 64 * half + 32 * (part % 2) + 16 * i), load4(column, r, 128 + 32 * half + 16 * i))
            };
            let low = if part < 2 { bits::<0>(low, 15) } else { bits::<4>(low, 15) };
            let high = match part {
                0 => _mm512_slli_epi16::<4>(high),
                1 => _mm512_slli_epi16::<2>(high),
                2 => high,
                _ => _mm512_srli_epi16::<2>(high),
            };
            // low | (high & 0x30)
            _mm512_ternarylogic_epi32::<0xf8>(low, high, _mm512_set1_epi8(0x30))
        };
        [six(0), six(1)]
    }
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
    unsafe fn head(column: Column) -> Head {
        // SAFETY: the caller's column.
        unsafe {
            let d = _mm512_cvtph_ps(words(column, Self::D));
            Head { d, m: d, ints: dwords(column, 192) }
        }
    }
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
    unsafe fn lane_scales<const J: usize>(head: &Head) -> LaneScales {
        // signed bytes 2J and 2J + 1
        let v = head.ints[J / 2];
        let scale = if J.is_multiple_of(2) {
            [_mm512_srai_epi32::<24>(_mm512_slli_epi32::<24>(v)), _mm512_srai_epi32::<24>(_mm512_slli_epi32::<16>(v))]
        } else {
            [_mm512_srai_epi32::<24>(_mm512_slli_epi32::<8>(v)), _mm512_srai_epi32::<24>(v)]
        };
        split(head, scale, scale)
    }
}

/// Bytes 2J and 2J + 1 of sixteen bytes in four dwords.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
fn byte_pair<const J: usize>(v: &[__m512i; 4]) -> [__m512i; 2] {
    let v = v[J / 2];
    if J.is_multiple_of(2) { [byte::<0>(v), byte::<1>(v)] } else { [byte::<2>(v), byte::<3>(v)] }
}

/// Two-bit values of group `J`: 32 bytes hold four groups.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
unsafe fn two_bits<const J: usize>(column: Column, r: usize, at: usize) -> [__m512i; 2] {
    // SAFETY: the caller's column holds these bytes.
    let v = unsafe { [load4(column, r, at + 32 * (J / 4)), load4(column, r, at + 32 * (J / 4) + 16)] };
    match J % 4 {
        0 => [bits::<0>(v[0], 3), bits::<0>(v[1], 3)],
        1 => [bits::<2>(v[0], 3), bits::<2>(v[1], 3)],
        2 => [bits::<4>(v[0], 3), bits::<4>(v[1], 3)],
        _ => [bits::<6>(v[0], 3), bits::<6>(v[1], 3)],
    }
}

impl Wide for Q2K {
    const UNIT: usize = 8;
    type Head = Head;
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
    unsafe fn wide_quants<const J: usize>(column: Column, r: usize) -> [__m512i; 2] {
        // SAFETY: the caller's column.
        unsafe { two_bits::<J>(column, r, 16) }
    }
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
    unsafe fn head(column: Column) -> Head {
        // SAFETY: the caller's column.
        unsafe {
            let (d, m) = (_mm512_cvtph_ps(words(column, Self::D)), _mm512_cvtph_ps(words(column, Self::M)));
            Head { d, m: minus(m), ints: dwords(column, 0) }
        }
    }
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
    unsafe fn lane_scales<const J: usize>(head: &Head) -> LaneScales {
        let pair = byte_pair::<J>(&head.ints);
        let low = |v: __m512i| _mm512_and_si512(v, _mm512_set1_epi32(15));
        let high = |v: __m512i| _mm512_srli_epi32::<4>(v);
        split(head, [low(pair[0]), low(pair[1])], [high(pair[0]), high(pair[1])])
    }
}

impl Wide for Q3K {
    const UNIT: usize = 8;
    type Head = Head;
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
    unsafe fn wide_quants<const J: usize>(column: Column, r: usize) -> [__m512i; 2] {
        // SAFETY: the caller's column.
        let (low, mask) = unsafe { (two_bits::<J>(column, r, 32), [load4(column, r, 0), load4(column, r, 16)]) };
        let (bit, four) = (_mm512_set1_epi8(1u8.wrapping_shl(J as u32) as i8), _mm512_set1_epi8(4));
        let with_third =
            |low: __m512i, mask: __m512i| _mm512_mask_add_epi8(low, _mm512_test_epi8_mask(mask, bit), low, four);
        [with_third(low[0], mask[0]), with_third(low[1], mask[1])]
    }
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
    unsafe fn head(column: Column) -> Head {
        // Two bytes of quants, twelve of scales, d: the last sixteen of the block, moved by two.
        // SAFETY: the caller's column.
        let row = |r: usize| _mm512_bsrli_epi128::<2>(unsafe { load4(column, r, 94) });
        let [a, b, c, d] = transpose([row(0), row(1), row(2), row(3)]);
        let low = |v: __m512i| _mm512_and_si512(v, _mm512_set1_epi32(0x0f0f_0f0f));
        let high = |v: __m512i| _mm512_slli_epi32::<4>(_mm512_and_si512(v, _mm512_set1_epi32(0x0303_0303)));
        let d = halfs(d);
        Head {
            d,
            m: d,
            ints: [
                _mm512_or_si512(low(a), high(c)),
                _mm512_or_si512(low(b), high(_mm512_srli_epi32::<2>(c))),
                _mm512_or_si512(low(_mm512_srli_epi32::<4>(a)), high(_mm512_srli_epi32::<4>(c))),
                _mm512_or_si512(low(_mm512_srli_epi32::<4>(b)), high(_mm512_srli_epi32::<6>(c))),
            ],
        }
    }
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
    unsafe fn lane_scales<const J: usize>(head: &Head) -> LaneScales {
        let pair = byte_pair::<J>(&head.ints);
        let centred = |v: __m512i| _mm512_sub_epi32(v, _mm512_set1_epi32(32));
        let scale = [centred(pair[0]), centred(pair[1])];
        split(head, scale, scale)
    }
}

impl Wide for Iq4Xs {
    const UNIT: usize = 8;
    type Head = Head;
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
    unsafe fn wide_quants<const J: usize>(column: Column, r: usize) -> [__m512i; 2] {
        // SAFETY: the caller's column.
        unsafe { iq4_values(column, r, 8 + 16 * J) }
    }
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
    unsafe fn head(column: Column) -> Head {
        // SAFETY: the caller's column.
        let ints = unsafe { dwords(column, 0) };
        let d = halfs(ints[0]);
        Head { d, m: d, ints }
    }
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
    unsafe fn lane_scales<const J: usize>(head: &Head) -> LaneScales {
        let shift = |v: __m512i, n: usize| _mm512_srl_epi32(v, _mm_cvtsi32_si128(n as i32));
        let low = _mm512_and_si512(shift(head.ints[1], 4 * J), _mm512_set1_epi32(15));
        let high = _mm512_and_si512(shift(head.ints[0], 16 + 2 * J), _mm512_set1_epi32(3));
        let scale = _mm512_or_si512(low, _mm512_slli_epi32::<4>(high));
        scaled(head, _mm512_sub_epi32(scale, _mm512_set1_epi32(32)), low)
    }
}
