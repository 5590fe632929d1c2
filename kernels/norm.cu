#include "device.cuh"
#include "quantize.cuh"
#include "spread.cuh"
#include "types.cuh"

// The sum over all threads of a block of full warps, in all of them the same bits. `warps` (32) is shared memory.
__device__ __forceinline__ float block_sum(float value, float* warps) {
    value = warp_sum(value);
    if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = value;
    __syncthreads();
    return warp_sum(threadIdx.x % 32 < blockDim.x / 32 ? warps[threadIdx.x % 32] : 0.0f);
}

// Elements that a thread asks for at once: the weights come from memory for each token, and their way is long.
const int AT_ONCE = 4;

// x += y; out = x / sqrt(mean(x^2) + eps) * weight. Where the squares overflow all is NaN: a scale of 0 would hide it.
// Reads x, y (m, dim) or no y, weight (dim), wanted (n) or null; writes x (m, dim) where there is y, Rows out (n, dim).
// Grid n, block any number of full warps, about dim / 4 threads; row r works on token wanted ? wanted[r] : r.
// Bound: latency at one token, 17 to 21 bytes an element else (x twice, y, weight, x back, q or f32 out).
KERNEL void __launch_bounds__(1024)
add_norm(float* __restrict__ x, const float* __restrict__ y, const float* __restrict__ weight, float eps, int dim,
         const int* __restrict__ wanted, Rows out) {
    __shared__ float warps[32];
    const int row = blockIdx.x, lane = threadIdx.x % 32, step = AT_ONCE * blockDim.x;
    const size_t token = wanted ? wanted[row] : row;
    x += token * dim;
    if (y) y += token * dim;
    float w[AT_ONCE], values[AT_ONCE], added[AT_ONCE];
    load_spread(weight, threadIdx.x, dim, 0.0f, w);
    float sum = 0.0f;
    for (int first = threadIdx.x; first < dim; first += step) {
        load_spread(x, first, dim, 0.0f, values);
        if (y) load_spread(y, first, dim, 0.0f, added);
#pragma unroll
        for (int i = 0; i < AT_ONCE; i++) {
            const int at = first + i * blockDim.x;
            if (y) values[i] += added[i];
            if (y && at < dim) x[at] = values[i];
            sum = fmaf(values[i], values[i], sum);
        }
    }
    const float mean = block_sum(sum, warps) / (float)dim;
    const float scale = isfinite(mean) ? 1.0f / sqrtf(mean + eps) : NAN;
    // a group is a warp's; its threads read back what they wrote themselves
    for (int first = threadIdx.x; first - lane < dim; first += step) {
        load_spread(x, first, dim, 0.0f, values);
        if (first >= step) load_spread(weight, first, dim, 0.0f, w);
#pragma unroll
        for (int i = 0; i < AT_ONCE; i++) {
            const int at = first + i * blockDim.x;
            if (at - lane < dim) store_group(out, row, at / 32, values[i] * scale * w[i]);
        }
    }
}
