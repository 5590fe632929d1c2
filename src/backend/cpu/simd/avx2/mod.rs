//! Kernels for AVX2 with FMA and F16C (Intel since 2013, AMD since 2015): eight rows or lanes per register.
//!
//! All functions here are safe wrappers around `#[target_feature]` code; the table is handed out only after the CPU was
//! asked for the three features, which is what makes the wrappers sound.

pub mod blocks;
pub mod float;
pub mod matmul;
pub mod rows;

use super::{Ahead, Kernels, scalar};

/// The table, if this CPU has the features.
pub fn kernels() -> Option<&'static Kernels> {
    let runs = is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") && is_x86_feature_detected!("f16c");
    runs.then_some(&KERNELS)
}

// SAFETY of every wrapper below: `KERNELS` is reachable only through `kernels()`, which has checked the CPU.
pub static KERNELS: Kernels = Kernels {
    name: "avx2",
    // SAFETY: see above.
    quantize: |x, tile, token| unsafe { float::quantize(x, tile, token) },
    // SAFETY: see above.
    matmul_quantized: |w, rows, x, next, out, column| unsafe {
        matmul::matmul_quantized(w, rows, x, next, out, column)
    },
    matmul_float: |w, rows, x, out, column| super::float_rows(w, rows, x, out, column, KERNELS.dot),
    // SAFETY: see above.
    dot: |a, b| unsafe { float::dot(a, b) },
    // SAFETY: see above.
    scores: |queries, k_rows, n, scale, out| unsafe { float::scores(queries, k_rows, n, scale, out) },
    scores_int8: |queries, q_scales, k_rows, k_scales, n, out| {
        // SAFETY: see above.
        unsafe { rows::scores(queries, q_scales, k_rows, k_scales, n, out) }
    },
    // SAFETY: see above.
    softmax_span: |scores| unsafe { float::softmax_span(scores) },
    // SAFETY: see above.
    accumulate: |p, v_rows, n, head_dim, o| unsafe { float::accumulate(p, v_rows, n, head_dim, o) },
    // SAFETY: see above.
    scale: |p, scales| unsafe { rows::scale(p, scales) },
    // SAFETY: see above.
    merge: |ml, o, span_ml, span_o| unsafe { float::merge(ml, o, span_ml, span_o) },
    // SAFETY: see above.
    silu_mul: |gate, up| unsafe { float::silu_mul(gate, up) },
    // SAFETY: see above.
    encode: |kv_type, row, stored, scale| unsafe { rows::encode(kv_type, row, stored, scale) },
    // SAFETY: see above.
    widen: |kv_type, stored, values| unsafe { rows::widen(kv_type, stored, values) },
    // SAFETY: see above.
    quantize_head: |head, q| unsafe { rows::quantize_head(head, q) },
    // SAFETY: see above.
    prefetch: |bytes| unsafe { float::prefetch(bytes) },
};
