#include "device.cuh"
#include "quantize.cuh"
#include "types.cuh"

// The sum over all threads of a block of full warps, in all of them the same bits. `warps` (32) is shared memory.
__device__ __forceinline__ float block_sum(float value, float* warps) {
    value = warp_sum(value);
    if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = value;
    __syncthreads();
    return warp_sum(threadIdx.x % 32 < blockDim.x / 32 ? warps[threadIdx.x % 32] : 0.0f);
}

// x += y; out = x / sqrt(mean(x^2) + eps) * weight. Where the squares overflow all is NaN: a scale of 0 would hide it.
// Reads x, y (m, dim) or no y, weight (dim), wanted (n) or null; writes x (m, dim) where there is y, Rows out (n, dim).
// Grid n, block any number of full warps, about dim / 4 threads; row r works on token wanted ? wanted[r] : r.
// Bound: latency at one token, 17 to 21 bytes an element else (x twice, y, weight, x back, q or f32 out).
KERNEL void __launch_bounds__(1024)
add_norm(float* __restrict__ x, const float* __restrict__ y, const float* __restrict__ weight, float eps, int dim,
         const int* __restrict__ wanted, Rows out) {
    __shared__ float warps[32];
    const int row = blockIdx.x;
    const size_t token = wanted ? wanted[row] : row;
    x += token * dim;
    float sum = 0.0f;
    if (y) {
        y += token * dim;
#pragma unroll 4
        for (int i = threadIdx.x; i < dim; i += blockDim.x) {
            const float added = x[i] + y[i];
            x[i] = added;
            sum = fmaf(added, added, sum);
        }
    } else {
#pragma unroll 4
        for (int i = threadIdx.x; i < dim; i += blockDim.x) sum = fmaf(x[i], x[i], sum);
    }
    const float mean = block_sum(sum, warps) / (float)dim;
    const float scale = isfinite(mean) ? 1.0f / sqrtf(mean + eps) : NAN;
    // a group is a warp's; its threads read back what they wrote themselves
    for (int group = threadIdx.x / 32; group * 32 < dim; group += blockDim.x / 32) {
        const int i = group * 32 + threadIdx.x % 32;
        store_group(out, row, group, i < dim ? x[i] * scale * weight[i] : 0.0f);
    }
}
