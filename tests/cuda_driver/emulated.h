// CUDA C++ for g++: what kernels see instead of the hardware. Every CUDA thread is a fiber of one CPU thread; a block runs
// at a time. See README.md for what that catches and what it cannot.
#pragma once
#if !defined(__x86_64__)
#error "the stand-in CUDA driver switches fibers with x86-64 instructions; port fibers.cpp to build it here"
#endif
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <immintrin.h>
#include <utility>

struct dim3 {
    unsigned x = 1, y = 1, z = 1;
    constexpr dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
};

namespace emulated {

// The part of a CUDA thread that kernels see; Fiber in runtime.h goes on from here.
struct Thread {
    dim3 index;
    unsigned lane;
};

extern Thread* current;
extern dim3 block_index, block_size, grid_size;
extern char* dynamic_shared;

// Where in the kernels a call stands, for messages.
struct Where {
    const char* file;
    int line;
};
#define EMULATED_CALLER emulated::Where where = {__builtin_FILE(), __builtin_LINE()}

// Returns how many threads of the block gave true.
int sync_block(bool predicate, Where where);
uint64_t shuffle(unsigned mask, uint64_t value, unsigned source_lane, Where where);
unsigned ballot(unsigned mask, bool predicate, Where where);
void sync_warp(unsigned mask, Where where);
float warp_sum(float value, Where where);
float warp_max(float value, Where where);
unsigned warp_max_bits(unsigned value, Where where);
void mma_s8(int (&d)[4], const uint32_t* a, const uint32_t* b, int k, Where where);
void cp_async16(void* shared, const void* global, Where where);
void cp_async_commit();
void cp_async_wait(unsigned newest);

// How a kernel is called with an array of pointers to its arguments, and how large each is.
using Call = void (*)(void** arguments);

struct Registration {
    Registration(const char* name, Call call, const size_t* sizes, size_t count);
};

template <auto kernel, class Signature = decltype(kernel)>
struct Caller;

template <auto kernel, class... Arguments>
struct Caller<kernel, void (*)(Arguments...)> {
    static constexpr size_t count = sizeof...(Arguments);
    static constexpr size_t sizes[count + 1] = {sizeof(Arguments)..., 0};

    template <size_t... I>
    static void call_with(void** arguments, std::index_sequence<I...>) {
        kernel(*static_cast<Arguments*>(arguments[I])...);
    }
    static void call(void** arguments) { call_with(arguments, std::index_sequence_for<Arguments...>{}); }
};

template <class T>
T shuffle_value(unsigned mask, T value, unsigned source_lane, Where where) {
    static_assert(sizeof(T) <= 8);
    uint64_t bits = 0;
    memcpy(&bits, &value, sizeof value);
    bits = shuffle(mask, bits, source_lane, where);
    memcpy(&value, &bits, sizeof value);
    return value;
}

// Lanes of the source for the four shuffles; `width` cuts a warp into groups that keep to themselves.
inline unsigned lane_at(int lane, int width) {
    return (current->lane & ~(width - 1)) | (unsigned(lane) & (width - 1));
}
inline unsigned lane_xor(int mask, int width) {
    unsigned other = current->lane ^ unsigned(mask);
    return (other & ~(width - 1)) > (current->lane & ~(width - 1)) ? current->lane : other;
}
inline unsigned lane_down(unsigned delta, int width) {
    return (current->lane & (width - 1)) + delta < unsigned(width) ? current->lane + delta : current->lane;
}
inline unsigned lane_up(unsigned delta, int width) {
    return (current->lane & (width - 1)) >= delta ? current->lane - delta : current->lane;
}

} // namespace emulated

// ---- Words of the language. build.sh finds kernels by the attribute that stands for __global__.
#define KERNEL extern "C" __global__
#define __global__ __attribute__((used))
#define __device__
#define __host__
#define __constant__
#define __forceinline__ inline __attribute__((always_inline))
#define __restrict__ __restrict
#define __launch_bounds__(...)
#define __align__(n) __attribute__((aligned(n)))
// One section for all of it, filled with 0xff (a NaN) before each block: shared memory starts undefined.
#define __shared__ __attribute__((section("emulated_shared"))) static
#define DYNAMIC_SHARED(T, name) T* name = reinterpret_cast<T*>(emulated::dynamic_shared)

#define threadIdx (emulated::current->index)
#define blockIdx emulated::block_index
#define blockDim emulated::block_size
#define gridDim emulated::grid_size
const int warpSize = 32;

inline void __syncthreads(EMULATED_CALLER) {
    emulated::sync_block(false, where);
}
inline int __syncthreads_count(int predicate, EMULATED_CALLER) {
    return emulated::sync_block(predicate != 0, where);
}
inline int __syncthreads_or(int predicate, EMULATED_CALLER) {
    return emulated::sync_block(predicate != 0, where) != 0;
}
inline int __syncthreads_and(int predicate, EMULATED_CALLER) {
    return emulated::sync_block(predicate == 0, where) == 0;
}
inline void __syncwarp(unsigned mask = 0xffffffffu, EMULATED_CALLER) {
    emulated::sync_warp(mask, where);
}
inline unsigned __ballot_sync(unsigned mask, int predicate, EMULATED_CALLER) {
    return emulated::ballot(mask, predicate != 0, where);
}
inline int __any_sync(unsigned mask, int predicate, EMULATED_CALLER) {
    return emulated::ballot(mask, predicate != 0, where) != 0;
}
inline int __all_sync(unsigned mask, int predicate, EMULATED_CALLER) {
    return emulated::ballot(mask, predicate == 0, where) == 0;
}
template <class T>
T __shfl_sync(unsigned mask, T value, int lane, int width = 32, EMULATED_CALLER) {
    return emulated::shuffle_value(mask, value, emulated::lane_at(lane, width), where);
}
template <class T>
T __shfl_xor_sync(unsigned mask, T value, int lane_mask, int width = 32, EMULATED_CALLER) {
    return emulated::shuffle_value(mask, value, emulated::lane_xor(lane_mask, width), where);
}
template <class T>
T __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = 32, EMULATED_CALLER) {
    return emulated::shuffle_value(mask, value, emulated::lane_down(delta, width), where);
}
template <class T>
T __shfl_up_sync(unsigned mask, T value, unsigned delta, int width = 32, EMULATED_CALLER) {
    return emulated::shuffle_value(mask, value, emulated::lane_up(delta, width), where);
}

#include "emulated_math.h"

// ---- What device.cuh wraps.
inline int dp4a(int a, int b, int c) {
    int8_t x[4], y[4];
    memcpy(x, &a, 4);
    memcpy(y, &b, 4);
    return c + x[0] * y[0] + x[1] * y[1] + x[2] * y[2] + x[3] * y[3];
}
inline void mma_16816(int (&d)[4], const uint32_t (&a)[2], uint32_t b, EMULATED_CALLER) {
    emulated::mma_s8(d, a, &b, 16, where);
}
inline void mma_16832(int (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2], EMULATED_CALLER) {
    emulated::mma_s8(d, a, b, 32, where);
}
// Both ends are touched here, in code that the sanitizers watch, and with the kernel's line in their reports.
inline void cp_async16(void* shared, const void* global, EMULATED_CALLER) {
    auto touch = [](const void* bytes) {
        (void)*static_cast<const volatile char*>(bytes);
        (void)static_cast<const volatile char*>(bytes)[15];
    };
    touch(shared);
    touch(global);
    emulated::cp_async16(shared, global, where);
}
inline void cp_async_commit() {
    emulated::cp_async_commit();
}
template <int N>
void cp_async_wait() {
    emulated::cp_async_wait(N);
}
inline float warp_sum(float value, EMULATED_CALLER) {
    return emulated::warp_sum(value, where);
}
inline float warp_max(float value, EMULATED_CALLER) {
    return emulated::warp_max(value, where);
}
inline unsigned warp_max_bits(unsigned value, EMULATED_CALLER) {
    return emulated::warp_max_bits(value, where);
}
