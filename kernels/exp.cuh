// e^x, silu: bit for bit as src/backend/cpu/simd/scalar.rs computes them.
#pragma once

// n = round(x / ln 2), a series on the rest, times 2^n. NaN stays NaN; below -87.33654 the result is 0, above 88 that
// of 88.
__device__ __forceinline__ float exp_as_cpu(float x) {
    if (x != x) return x;
    if (x < -87.33654f) return 0.0f;
    x = fminf(x, 88.0f);
    const float n = rintf(x * 1.44269504088896340736f);
    const float r = fmaf(n, -1.4286068e-6f, fmaf(n, -0.69314575f, x)); // ln 2 in two parts
    float tail = 1.0f / 5040.0f;
    tail = fmaf(tail, r, 1.0f / 720.0f);
    tail = fmaf(tail, r, 1.0f / 120.0f);
    tail = fmaf(tail, r, 1.0f / 24.0f);
    tail = fmaf(tail, r, 1.0f / 6.0f);
    tail = fmaf(tail, r, 0.5f);
    const float series = fmaf(r * r, tail, r) + 1.0f;
    return series * __int_as_float(((int)n + 127) << 23);
}

__device__ __forceinline__ float silu_times(float gate, float up) {
    return gate / (1.0f + exp_as_cpu(-gate)) * up;
}
