//! Kernels for AArch64. NEON and its fused multiply-add belong to every such CPU; the byte dot product `sdot` (optional in
//! Armv8.2, then required) is asked for at start. Four lanes per register: eight rows take two.
//!
//! Tested under emulation, on a CPU with `sdot` and on one without; their speed was never measured.

mod attention;
mod blocks;
mod dot;
mod float;
mod matmul;
mod rows;

use std::arch::is_aarch64_feature_detected;

use super::{Kernels, scalar};
use dot::{Dot, Sdot, Widening};

/// The table for this CPU.
pub fn kernels() -> &'static Kernels {
    static WITH_SDOT: Kernels = table::<Sdot>();
    static WITHOUT: Kernels = table::<Widening>();
    if is_aarch64_feature_detected!("dotprod") { &WITH_SDOT } else { &WITHOUT }
}

/// What is not named here is scalar code, which the compiler turns into the same instructions.
const fn table<D: Dot>() -> Kernels {
    Kernels {
        name: "neon",
        quantize: float::quantize,
        // SAFETY: a table is reachable only through `kernels()`, which has asked the CPU for D's instruction.
        matmul_quantized: |w, rows, x, out, column| unsafe { matmul::matmul_quantized::<D>(w, rows, x, out, column) },
        matmul_float: |w, rows, x, out, column| super::float_rows(w, rows, x, out, column, attention::dot),
        dot: attention::dot,
        scores: attention::scores,
        scores_int8: |queries, q_scales, k_rows, k_scales, n, out| {
            // SAFETY: as above.
            unsafe { attention::scores_int8::<D>(queries, q_scales, k_rows, k_scales, n, out) }
        },
        softmax_span: float::softmax_span,
        accumulate: attention::accumulate,
        scale: rows::scale,
        silu_mul: float::silu_mul,
        encode: rows::encode,
        widen: rows::widen,
        quantize_head: rows::quantize_head,
        prefetch: rows::prefetch,
        merge: scalar::merge,
    }
}
