//! Kernels for AArch64. NEON and its fused multiply-add belong to every such CPU that runs Rust programs; the byte dot
//! product `sdot` (optional in Armv8.2, then required) is asked for at start. Four lanes per register: eight rows take two.
//!
//! Tested under emulation, on a CPU with `sdot` and on one without; their speed was never measured.

mod attention;
mod blocks;
mod dot;
mod float;
mod matmul;
mod peaks;
mod rows;

use std::arch::is_aarch64_feature_detected;

use super::{Ahead, Kernels, scalar};
use dot::{Dot, Sdot, Widening};

pub use peaks::peaks;

/// The table for this CPU, if it has NEON.
pub fn kernels() -> Option<&'static Kernels> {
    static WITH_SDOT: Kernels = table::<Sdot>();
    static WITHOUT: Kernels = table::<Widening>();
    let best = if is_aarch64_feature_detected!("dotprod") { &WITH_SDOT } else { &WITHOUT };
    is_aarch64_feature_detected!("neon").then_some(best)
}

// SAFETY of every wrapper below: a table is reachable only through `kernels()`, which has asked the CPU for NEON and, where
// D needs it, `sdot`.
const fn table<D: Dot>() -> Kernels {
    Kernels {
        name: "neon",
        // SAFETY: see above.
        quantize: |x, tile, token| unsafe { float::quantize(x, tile, token) },
        // SAFETY: see above.
        matmul_quantized: |w, rows, x, next, out, column| unsafe {
            matmul::matmul_quantized::<D>(w, rows, x, next, out, column)
        },
        // SAFETY: see above.
        matmul_float: |w, rows, x, out, column| {
            super::float_rows(w, rows, x, out, column, |a, b| unsafe { attention::dot(a, b) });
        },
        // SAFETY: see above.
        dot: |a, b| unsafe { attention::dot(a, b) },
        // SAFETY: see above.
        scores: |queries, k_rows, n, scale, out| unsafe { attention::scores(queries, k_rows, n, scale, out) },
        scores_int8: |queries, q_scales, k_rows, k_scales, n, out| {
            // SAFETY: see above.
            unsafe { attention::scores_int8::<D>(queries, q_scales, k_rows, k_scales, n, out) }
        },
        // SAFETY: see above.
        softmax_span: |scores| unsafe { float::softmax_span(scores) },
        // SAFETY: see above.
        accumulate: |p, v_rows, n, head_dim, o| unsafe { attention::accumulate(p, v_rows, n, head_dim, o) },
        // SAFETY: see above.
        scale: |p, scales| unsafe { rows::scale(p, scales) },
        // the compiler makes the same instructions of it
        merge: scalar::merge,
        // SAFETY: see above.
        silu_mul: |gate, up| unsafe { float::silu_mul(gate, up) },
        // SAFETY: see above.
        encode: |kv_type, row, stored, scale| unsafe { rows::encode(kv_type, row, stored, scale) },
        // SAFETY: see above.
        widen: |kv_type, stored, values| unsafe { rows::widen(kv_type, stored, values) },
        // SAFETY: see above.
        quantize_head: |head, q| unsafe { rows::quantize_head(head, q) },
        prefetch: rows::prefetch,
    }
}
