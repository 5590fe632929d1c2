// K and V in their pages, and the rotation of INT8 heads: src/kv/layout.rs and src/kv/rows.rs on the device.
#pragma once
#include "device.cuh"
#include "types.cuh"

// The rows of one KV head, of K or of V, in the pages of a sequence from some entry on that starts a page.
struct HeadRows {
    uint8_t* head; // in block 0
    long long block_stride;
    const int* pages;

    // The 16 rows of the page that holds an entry; behind them their scales.
    __device__ __forceinline__ uint8_t* page(int entry) const {
        return head + (long long)pages[entry / BLOCK_TOKENS] * block_stride;
    }
    // The bytes of an entry's row.
    __device__ __forceinline__ uint8_t* row(int entry, int row_bytes) const {
        return page(entry) + entry % BLOCK_TOKENS * row_bytes;
    }
    // The f16 scale of an INT8 row.
    __device__ __forceinline__ uint16_t* scale(int entry, int head_dim) const {
        return reinterpret_cast<uint16_t*>(page(entry) + BLOCK_TOKENS * head_dim) + entry % BLOCK_TOKENS;
    }
};

__device__ __forceinline__ HeadRows k_rows(const KvLayer& kv, const int* pages, int kv_head) {
    return {kv.pool + kv.k_offset + kv_head * kv.k_head_bytes, kv.block_stride, pages};
}

__device__ __forceinline__ HeadRows v_rows(const KvLayer& kv, const int* pages, int kv_head) {
    return {kv.pool + kv.v_offset + kv_head * kv.v_head_bytes, kv.block_stride, pages};
}

// Eight f16 values as f32.
__device__ __forceinline__ void widen(const uint4& stored, float (&x)[8]) {
    const uint32_t words[4] = {stored.x, stored.y, stored.z, stored.w};
#pragma unroll
    for (int i = 0; i < 4; i++) {
        x[2 * i] = f16_to_float((uint16_t)(words[i] & 0xffff));
        x[2 * i + 1] = f16_to_float((uint16_t)(words[i] >> 16));
    }
}

// Eight signed bytes as f32, exactly: with its sign bit turned a byte is the low end of the float 2^23 + 128 + byte. An
// addition and a byte permutation run at full rate, conversions at a quarter of it or less.
__device__ __forceinline__ void widen(const uint2& stored, float (&x)[8]) {
    const uint32_t words[2] = {stored.x ^ 0x80808080u, stored.y ^ 0x80808080u};
#pragma unroll
    for (int i = 0; i < 8; i++) {
        const uint32_t bits = __byte_perm(words[i / 4], 0x4b000000u, 0x7440 + i % 4);
        x[i] = __uint_as_float(bits) - 8388736.0f;
    }
}

// Head dimensions are no powers of two always: a head is rotated in parts of the largest one that divides it.
__device__ __forceinline__ int rotated_part(int head_dim) {
    return head_dim & -head_dim;
}

// One step of the Hadamard transform for the element that is `upper` in its pair, or lower.
__device__ __forceinline__ float butterfly(float own, float other, bool upper) {
    return upper ? other - own : own + other;
}

// The rotation of a head by a block of head_dim threads, an element each; additions in the order of src/kv/rows.rs.
// `exchange` (head_dim) is shared memory.
__device__ __forceinline__ float rotate(float x, int head_dim, float* exchange) {
    const int i = threadIdx.x, part = rotated_part(head_dim);
#pragma unroll
    for (int width = 1; width < 32; width *= 2) x = butterfly(x, __shfl_xor_sync(0xffffffffu, x, width), i & width);
    for (int width = 32; width < part; width *= 2) {
        __syncthreads();
        exchange[i] = x;
        __syncthreads();
        x = butterfly(x, exchange[i ^ width], i & width);
    }
    return x * (1.0f / sqrtf((float)part));
}
