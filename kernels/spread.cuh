// A row shared out over a block.
#pragma once
#include "device.cuh"

// Elements first, first + blockDim.x, ... of a row of `len`; `filler` behind its end. They are all asked for before the
// first is waited for, which a loop that may end at each of them would not do.
template <int N>
__device__ __forceinline__ void load_spread(const float* row, int first, int len, float filler, float (&x)[N]) {
#pragma unroll
    for (int i = 0; i < N; i++) {
        const int at = first + i * blockDim.x;
        x[i] = at < len ? row[at] : filler;
    }
}
