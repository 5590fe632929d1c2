//! What a core gives at best with the instructions of this table (see `simd::peaks`).

use std::arch::aarch64::*;
use std::arch::is_aarch64_feature_detected;

use super::dot::{Dot, Sdot};
use super::rows::prefetch_line;
use crate::backend::cpu::simd::peaks::{CHAINS, PLAIN, Peaks, sum};

/// The loops that belong to `kernels()`. Without `sdot` the compiler's loop over bytes is as good as any.
pub fn peaks() -> Peaks {
    let plain = Peaks {
        read: |bytes| sum(bytes, prefetch_line),
        // SAFETY: asked for only with the table of this CPU, which has NEON then.
        float: |rounds| unsafe { float(rounds) },
        float_ops_per_round: 2 * CHAINS * 4,
        ..PLAIN
    };
    if is_aarch64_feature_detected!("dotprod") {
        // SAFETY: the CPU has `sdot`.
        Peaks { int8: |rounds| unsafe { int8(rounds) }, int8_ops_per_round: 2 * CHAINS * 16, ..plain }
    } else {
        plain
    }
}

/// `sdot`: sixteen products and their sums.
#[target_feature(enable = "neon")]
unsafe fn int8(rounds: usize) -> u64 {
    let (a, b) = std::hint::black_box((vdupq_n_s8(3), vdupq_n_s8(5)));
    let mut sums = [vdupq_n_s32(0); CHAINS];
    for _ in 0..rounds {
        for sum in &mut sums {
            // SAFETY: the caller has asked for the instruction.
            *sum = unsafe { Sdot::quads(*sum, a, b) };
        }
    }
    sums.iter().map(|&sum| vaddvq_s32(sum) as u64).fold(0, u64::wrapping_add)
}

#[target_feature(enable = "neon")]
fn float(rounds: usize) -> u64 {
    let factor = std::hint::black_box(vdupq_n_f32(0.5));
    let mut sums = [factor; CHAINS];
    for _ in 0..rounds {
        for sum in &mut sums {
            *sum = vfmaq_f32(factor, *sum, factor);
        }
    }
    sums.iter().map(|&sum| u64::from(vgetq_lane_f32::<0>(sum).to_bits())).sum()
}
