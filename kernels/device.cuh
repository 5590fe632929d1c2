// The one door between kernels and the hardware: every instruction that CUDA C++ has no name for, and the one place that
// knows of the emulation (tests/cuda_driver), in which g++ compiles the same kernels for the CPU.
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
typedef unsigned long long uint64_t;

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

// d (16 x 8) += a (16 x 32) b (32 x 8) of signed bytes by one warp, in the fragments of PTX's mma.m16n8k32.
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
#endif
