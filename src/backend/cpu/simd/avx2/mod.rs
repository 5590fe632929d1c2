//! Kernels for AVX2 with FMA and F16C (Intel since 2013, AMD since 2015): eight rows or lanes per register.
//!
//! All functions here are safe wrappers around `#[target_feature]` code; the table is handed out only after the CPU was
//! asked for the three features, which is what makes the wrappers sound.

mod blocks;
mod float;
mod matmul;

use super::{Kernels, scalar};

/// The table, if this CPU has the features.
pub fn kernels() -> Option<&'static Kernels> {
    let runs = is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") && is_x86_feature_detected!("f16c");
    runs.then_some(&KERNELS)
}

// SAFETY of every wrapper below: `KERNELS` is reachable only through `kernels()`, which has checked the CPU.
static KERNELS: Kernels = Kernels {
    name: "avx2",
    // SAFETY: see above.
    quantize: |x, row| unsafe { float::quantize(x, row) },
    // SAFETY: see above.
    matmul_quantized: |w, rows, x, out, column| unsafe { matmul::matmul_quantized(w, rows, x, out, column) },
    matmul_float: |w, rows, x, out, column| super::float_rows(w, rows, x, out, column, KERNELS.dot),
    // SAFETY: see above.
    dot: |a, b| unsafe { float::dot(a, b) },
    // SAFETY: see above.
    scores: |q, k_rows, scale, out| unsafe { float::scores(q, k_rows, scale, out) },
    // SAFETY: see above.
    softmax_span: |scores| unsafe { float::softmax_span(scores) },
    // SAFETY: see above.
    accumulate: |p, v_rows, o| unsafe { float::accumulate(p, v_rows, o) },
    // SAFETY: see above.
    silu_mul: |gate, up| unsafe { float::silu_mul(gate, up) },
    // SAFETY: see above.
    encode: |kv_type, row, stored| unsafe { float::encode(kv_type, row, stored) },
    // SAFETY: see above.
    decode: |kv_type, stored, rows| unsafe { float::decode(kv_type, stored, rows) },
};
