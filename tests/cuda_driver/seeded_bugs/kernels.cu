// Kernels that are wrong on purpose, beside right ones that differ in one line: what the stand-in driver must catch, and
// what it must not complain about. Never a part of the program. All are launched with blocks of 128 threads, with
// x (n) f32 of ones and y (n) f32.
#include "device.cuh"

// y[block] = the sum of 128 values of x by halves. The racy one lacks the barrier between two halves.
template <bool racy>
__device__ __forceinline__ void sum_of_block(const float* x, float* y) {
    __shared__ float part[128];
    part[threadIdx.x] = x[blockIdx.x * 128 + threadIdx.x];
    __syncthreads();
    for (int half = 64; half > 0; half /= 2) {
        if (threadIdx.x < half) part[threadIdx.x] += part[threadIdx.x + half];
        if (!racy) __syncthreads();
    }
    if (threadIdx.x == 0) y[blockIdx.x] = part[0];
}
KERNEL void right_sum(const float* x, float* y, int n) {
    sum_of_block<false>(x, y);
}
KERNEL void racy_sum(const float* x, float* y, int n) {
    sum_of_block<true>(x, y);
}

// Lanes of one warp hand a value on through shared memory. A shuffle in between is no fence.
template <bool fenced>
__device__ __forceinline__ void neighbours(const float* x, float* y) {
    __shared__ float passed[128];
    passed[threadIdx.x] = x[threadIdx.x];
    if (fenced) __syncwarp();
    else __shfl_xor_sync(0xffffffffu, 0, 1);
    y[threadIdx.x] = passed[threadIdx.x ^ 1];
}
KERNEL void right_neighbours(const float* x, float* y, int n) {
    neighbours<true>(x, y);
}
KERNEL void unfenced_neighbours(const float* x, float* y, int n) {
    neighbours<false>(x, y);
}

// y = 2 x. The wrong ones go one element too far.
KERNEL void right_double(const float* x, float* y, int n) {
    int i = blockIdx.x * 128 + threadIdx.x;
    if (i < n) y[i] = 2 * x[i];
}
KERNEL void reads_past_the_end(const float* x, float* y, int n) {
    int i = blockIdx.x * 128 + threadIdx.x;
    if (i < n) y[i] = x[i] + x[min(i + 1, n)];
}
KERNEL void writes_past_the_end(const float* x, float* y, int n) {
    int i = blockIdx.x * 128 + threadIdx.x;
    if (i < n) y[i] = 2 * x[i];
    if (i == n - 1) y[n] = 0;
}
KERNEL void writes_past_shared(const float* x, float* y, int n) {
    DYNAMIC_SHARED(float, buffer); // 128 elements
    buffer[threadIdx.x + 1] = x[threadIdx.x];
    __syncthreads();
    y[threadIdx.x] = 2 * buffer[threadIdx.x + 1];
}
KERNEL void writes_past_static_shared(const float* x, float* y, int n) {
    __shared__ float buffer[128];
    buffer[threadIdx.x + 1] = x[threadIdx.x];
    __syncthreads();
    y[threadIdx.x] = 2 * buffer[threadIdx.x + 1];
}
// float4 wants an address that is a multiple of 16.
KERNEL void unaligned_vector(const float* x, float* y, int n) {
    float4 four = *reinterpret_cast<const float4*>(x + 1);
    y[threadIdx.x] = four.x + four.y;
}
KERNEL void divides_by_zero(const float* x, float* y, int n) {
    y[threadIdx.x] = n / int(x[threadIdx.x] - 1);
}

// ---- Barriers and warps

KERNEL void divergent_barrier(const float* x, float* y, int n) {
    if (threadIdx.x < 32) __syncthreads();
    y[threadIdx.x] = 2 * x[threadIdx.x];
}
KERNEL void two_barriers(const float* x, float* y, int n) {
    if (threadIdx.x < 32) __syncthreads();
    else __syncthreads();
    y[threadIdx.x] = 2 * x[threadIdx.x];
}
KERNEL void partial_shuffle(const float* x, float* y, int n) {
    float value = 0;
    if (threadIdx.x % 32 < 16) value = __shfl_xor_sync(0xffffffffu, x[threadIdx.x], 1);
    y[threadIdx.x] = 2 * value;
}
KERNEL void shuffle_from_outside_the_mask(const float* x, float* y, int n) {
    float value = 0;
    if (threadIdx.x % 32 < 16) value = __shfl_sync(0x0000ffffu, x[threadIdx.x], 20);
    y[threadIdx.x] = 2 * value;
}
KERNEL void two_warp_operations(const float* x, float* y, int n) {
    float value = threadIdx.x % 2 ? warp_sum(x[threadIdx.x]) : warp_max(x[threadIdx.x]);
    y[threadIdx.x] = 2 * value;
}

// ---- cp.async, shared memory that nobody wrote

template <bool waits>
__device__ __forceinline__ void copy_through_shared(const float* x, float* y) {
    __shared__ __align__(16) float buffer[512];
    cp_async16(buffer + 4 * threadIdx.x, x + 4 * threadIdx.x);
    cp_async_commit();
    if (waits) cp_async_wait<0>();
    __syncthreads();
    y[threadIdx.x] = 2 * buffer[threadIdx.x];
}
KERNEL void right_copy(const float* x, float* y, int n) {
    copy_through_shared<true>(x, y);
}
KERNEL void copy_without_wait(const float* x, float* y, int n) {
    copy_through_shared<false>(x, y);
}
// The wait is there, the barrier behind it is not: other threads' copies may not have arrived.
KERNEL void copy_without_barrier(const float* x, float* y, int n) {
    __shared__ __align__(16) float buffer[512];
    cp_async16(buffer + 4 * threadIdx.x, x + 4 * threadIdx.x);
    cp_async_commit();
    cp_async_wait<0>();
    y[threadIdx.x] = 2 * buffer[threadIdx.x];
}
KERNEL void uninitialised_shared(const float* x, float* y, int n) {
    __shared__ float buffer[128];
    if (threadIdx.x < 127) buffer[threadIdx.x] = x[threadIdx.x];
    __syncthreads();
    y[threadIdx.x] = 2 * buffer[threadIdx.x];
}
