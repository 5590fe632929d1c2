//! Kernels for AVX-512 with VNNI (Intel since Ice Lake, AMD since Zen 4): sixteen rows per register, one instruction for
//! four products of bytes. What is small keeps the AVX2 form.

mod attention;
mod blocks;
mod matmul;

use super::{Kernels, avx2};

/// The table, if this CPU has the features.
pub fn kernels() -> Option<&'static Kernels> {
    let runs = is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512bw")
        && is_x86_feature_detected!("avx512vl")
        && is_x86_feature_detected!("avx512dq")
        && is_x86_feature_detected!("avx512vnni")
        && avx2::kernels().is_some();
    runs.then_some(&KERNELS)
}

static KERNELS: Kernels = Kernels {
    name: "avx512",
    // SAFETY: `KERNELS` is reachable only through `kernels()`, which has checked the CPU.
    matmul_quantized: |w, rows, x, next, out, column| unsafe {
        matmul::matmul_quantized(w, rows, x, next, out, column)
    },
    // SAFETY: as above.
    scores: |queries, k_rows, n, scale, out| unsafe { attention::scores(queries, k_rows, n, scale, out) },
    scores_int8: |queries, q_scales, k_rows, k_scales, n, out| {
        // SAFETY: as above.
        unsafe { attention::scores_int8(queries, q_scales, k_rows, k_scales, n, out) }
    },
    // SAFETY: as above.
    softmax_span: |scores| unsafe { attention::softmax_span(scores) },
    // SAFETY: as above.
    accumulate: |p, v_rows, n, head_dim, o| unsafe { attention::accumulate(p, v_rows, n, head_dim, o) },
    // SAFETY: as above.
    scale: |p, scales| unsafe { attention::scale(p, scales) },
    // SAFETY: as above.
    widen: |kv_type, stored, values| unsafe { attention::widen(kv_type, stored, values) },
    // SAFETY: as above.
    silu_mul: |gate, up| unsafe { attention::silu_mul(gate, up) },
    ..avx2::KERNELS
};
