// 32 consecutive activations -> int8 by one warp: src/quant/activation.rs bit for bit.
#pragma once
#include "device.cuh"
#include "types.cuh"

// Clamped, then rounded to nearest even. fmaxf sends NaN to the lower bound.
__device__ __forceinline__ int round_to_level(float v) {
    return (int)rintf(fminf(fmaxf(v, -127.0f), 127.0f));
}

// The inverse that values are multiplied by: 0 for a group of zeros.
__device__ __forceinline__ float inverse_or_zero(float scale) {
    return scale == 0.0f ? 0.0f : 1.0f / scale;
}

// Lane i of a full warp holds element i. Writes the 32 levels and the group's scale and sums.
__device__ __forceinline__ void quantize_group(float x, int8_t* q, XGroup* group) {
    const int lane = threadIdx.x & 31;
    // max|x| by its bits: NaN is above all, so that it reaches the scale
    const float scale = __uint_as_float(warp_max_bits(__float_as_uint(x) & 0x7fffffffu)) / 127.0f;
    const int level = round_to_level(x * inverse_or_zero(scale));
    q[lane] = (int8_t)level;
    // both half sums (within 16 * 127) at once: the second counts 65536
    int sums = lane < 16 ? level : level * 65536;
#pragma unroll
    for (int offset = 16; offset > 0; offset >>= 1) sums += __shfl_xor_sync(0xffffffffu, sums, offset);
    if (lane == 0) {
        const int16_t first = (int16_t)(sums & 0xffff);
        XGroup made;
        made.scale = scale;
        made.sum[0] = first;
        made.sum[1] = (int16_t)((sums - first) >> 16);
        *group = made;
    }
}

// Lane i of a full warp holds element i of group `group` of row `row`. Writes what `out` asks for: f32, int8, or both.
// A last group that is not whole is only allowed without int8; its lanes past `cols` write nothing.
__device__ __forceinline__ void store_group(const Rows& out, int row, int group, float x) {
    const int column = group * 32 + (threadIdx.x & 31);
    if (out.x && column < out.cols) out.x[(size_t)row * out.cols + column] = x;
    if (out.q) {
        const size_t at = (size_t)row * (out.cols / 32) + group;
        quantize_group(x, out.q + at * 32, out.groups + at);
    }
}
