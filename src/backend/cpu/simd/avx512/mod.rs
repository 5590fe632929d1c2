//! Kernels for AVX-512 with VNNI (Intel since Ice Lake, AMD since Zen 4): sixteen rows per register, one instruction for
//! four products of bytes. What is bound by memory or small keeps the AVX2 form.

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
    matmul_quantized: |w, rows, x, out, column| unsafe { matmul::matmul_quantized(w, rows, x, out, column) },
    ..avx2::KERNELS
};
