// The one door between kernels and the hardware: every instruction that CUDA C++ has no name for, and the one place that
// knows of the emulation (tests/cuda_driver), in which g++ compiles the same kernels for the CPU. All of it works on
// Turing (compute capability 7.5) too.
#pragma once
#ifdef SAYFA_EMULATED
#include "emulated.h"
#else
#include <cuda_fp16.h>
typedef unsigned char uint8_t;
typedef signed char int8_t;
typedef short int16_t;
typedef unsigned short uint16_t;
typedef int int32_t;
typedef unsigned int uint32_t;
typedef long long int64_t;
typedef unsigned long long uint64_t;

#define INFINITY __int_as_float(0x7f800000)
#define NAN __int_as_float(0x7fffffff)

#define KERNEL extern "C" __global__
// Dynamic shared memory as an array of T.
#define DYNAMIC_SHARED(T, name)                                     \
    extern __shared__ __align__(16) unsigned char name##_bytes_[];  \
    T* name = reinterpret_cast<T*>(name##_bytes_)

// c + the sum of four products of signed bytes. NVRTC 12.0 turns __dp4a into a call that nobody defines.
__device__ __forceinline__ int dp4a(int a, int b, int c) {
    int d;
    asm("dp4a.s32.s32 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
    return d;
}

// d (16 x 8) += a (16 x 16) b (16 x 8) of signed bytes by one warp, in the fragments of PTX's mma.m16n8k16.s8: lane l
// holds rows l / 4 and l / 4 + 8 of a (four values of k from 4 * (l % 4) each), column l / 4 of b (the same k), and of d
// columns 2 * (l % 4) and the next, of both rows.
__device__ __forceinline__ void mma_16816(int (&d)[4], const uint32_t (&a)[2], uint32_t b) {
#if __CUDA_ARCH__ >= 800
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.s32.s8.s8.s32 {%0,%1,%2,%3},{%4,%5},{%6},{%0,%1,%2,%3};"
        : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(b));
#else
    asm volatile("mma.sync.aligned.m8n8k16.row.col.s32.s8.s8.s32 {%0,%1},{%2},{%3},{%0,%1};"
                 : "+r"(d[0]), "+r"(d[1]) : "r"(a[0]), "r"(b));
    asm volatile("mma.sync.aligned.m8n8k16.row.col.s32.s8.s8.s32 {%0,%1},{%2},{%3},{%0,%1};"
                 : "+r"(d[2]), "+r"(d[3]) : "r"(a[1]), "r"(b));
#endif
}

// d (16 x 8) += a (16 x 32) b (32 x 8) of signed bytes by one warp, in the fragments of PTX's mma.m16n8k32: a[0], a[1],
// b[0] are those of mma_16816 for the lower half of k, a[2], a[3], b[1] those for the upper.
__device__ __forceinline__ void mma_16832(int (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
#if __CUDA_ARCH__ >= 800
    asm volatile(
        "mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%0,%1,%2,%3};"
        : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#else
    mma_16816(d, {a[0], a[1]}, b[0]);
    mma_16816(d, {a[2], a[3]}, b[1]);
#endif
}

// Starts a copy of 16 aligned bytes from global to shared memory that does not pass through registers. What it brings may
// be read after cp_async_wait by the thread that started it, and after a barrier behind that by the others. Turing copies
// at once.
__device__ __forceinline__ void cp_async16(void* shared, const void* global) {
#if __CUDA_ARCH__ >= 800
    unsigned address = (unsigned)__cvta_generic_to_shared(shared);
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(address), "l"(global) : "memory");
#else
    *reinterpret_cast<uint4*>(shared) = *reinterpret_cast<const uint4*>(global);
#endif
}

// Closes the group of the copies that this thread has started since the last one.
__device__ __forceinline__ void cp_async_commit() {
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}

// Waits until all but the N newest groups of this thread have arrived.
template <int N>
__device__ __forceinline__ void cp_async_wait() {
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
#endif
}

// The sum over a warp, in every lane the same bits: lanes 16 apart first, neighbours last.
__device__ __forceinline__ float warp_sum(float value) {
#pragma unroll
    for (int apart = 16; apart > 0; apart >>= 1) value += __shfl_xor_sync(0xffffffffu, value, apart);
    return value;
}

__device__ __forceinline__ float warp_max(float value) {
#pragma unroll
    for (int apart = 16; apart > 0; apart >>= 1) value = fmaxf(value, __shfl_xor_sync(0xffffffffu, value, apart));
    return value;
}

// The largest of 32 unsigned numbers. For the bits of magnitudes this is a maximum in which infinity and NaN win.
__device__ __forceinline__ unsigned warp_max_bits(unsigned value) {
#if __CUDA_ARCH__ >= 800
    return __reduce_max_sync(0xffffffffu, value);
#else
#pragma unroll
    for (int apart = 16; apart > 0; apart >>= 1) value = max(value, __shfl_xor_sync(0xffffffffu, value, apart));
    return value;
#endif
}
#endif

__device__ __forceinline__ float f16_to_float(uint16_t bits) {
    return __half2float(__ushort_as_half(bits));
}

// Rounded to the nearest, ties to even.
__device__ __forceinline__ uint16_t float_to_f16(float value) {
    return __half_as_ushort(__float2half_rn(value));
}

__device__ __forceinline__ float bf16_to_float(uint16_t bits) {
    return __uint_as_float(uint32_t(bits) << 16);
}
