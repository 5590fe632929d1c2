#include "device.cuh"
#include "kv.cuh"
#include "quantize.cuh"
#include "types.cuh"

// max|x| over a block of full warps by its bits, in which NaN is above all. `warps` (8) is shared memory.
__device__ __forceinline__ float block_magnitude(float x, uint32_t* warps) {
    const uint32_t max = warp_max_bits(__float_as_uint(x) & 0x7fffffffu);
    if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = max;
    __syncthreads();
    uint32_t all = 0;
    for (int warp = 0; warp < (int)blockDim.x / 32; warp++) all = warps[warp] > all ? warps[warp] : all;
    return __uint_as_float(all);
}

// The new rows of q, k and v as attention reads them: q and k turned by their position, heads of an INT8 half (and q with
// K) rotated, q in int8 beside INT8 K; K and V in the pages of their sequence.
// Reads qkv (n, (n_heads + 2 n_kv_heads) * head_dim); writes q or q8 (n, n_heads * head_dim), q8_scale (n, n_heads), and
// for each KV head a row of K and of V. Grid (n_heads + 2 n_kv_heads, n), block head_dim: an element a thread.
// Bound: latency at one token; else 4 bytes an element in, 4, 2 or 1 out.
KERNEL void __launch_bounds__(256)
rope_store(const float* __restrict__ qkv, Step step, Heads heads, KvLayer kv, float* q, int8_t* q8, float* q8_scale) {
    __shared__ float exchange[256];
    __shared__ uint32_t warps[8];
    const int i = threadIdx.x, head_dim = heads.head_dim, token = blockIdx.y, head = blockIdx.x;
    const bool is_q = head < heads.n_heads, is_v = head >= heads.n_heads + heads.n_kv_heads;
    const bool is_int8 = (is_v ? kv.v_type : kv.k_type) == KV_INT8;
    // where K and V go is looked up first: two loads, one behind the other
    const Token place = step.tokens[token];
    const int* pages = step.pages + (size_t)place.sequence * step.max_pages;
    const int kv_head = is_q ? 0 : (head - heads.n_heads) % heads.n_kv_heads;
    uint8_t* page = (is_v ? v_rows(kv, pages, kv_head) : k_rows(kv, pages, kv_head)).page(place.slot);
    float x = qkv[((size_t)token * gridDim.x + head) * head_dim + i];
    if (!is_v) {
        const int pair = token * (head_dim / 2) + i / 2;
        const float cos = step.cos[pair], sin = step.sin[pair], other = __shfl_xor_sync(0xffffffffu, x, 1);
        x = i % 2 == 0 ? x * cos - other * sin : other * sin + x * cos;
    }
    float max = 0.0f;
    if (is_int8) {
        x = rotate(x, head_dim, exchange);
        max = block_magnitude(x, warps);
    }
    if (is_q) {
        const size_t query = (size_t)token * heads.n_heads + head;
        if (is_int8) {
            const float scale = max / 127.0f;
            q8[query * head_dim + i] = (int8_t)round_to_level(x * inverse_or_zero(scale));
            if (i == 0) q8_scale[query] = scale;
        } else {
            q[query * head_dim + i] = x;
        }
        return;
    }
    const int row = place.slot % BLOCK_TOKENS;
    if (is_int8) {
        // the scale as it is stored is what values are divided by
        const uint16_t scale = float_to_f16(max / 127.0f);
        page[row * head_dim + i] = (uint8_t)round_to_level(x * inverse_or_zero(f16_to_float(scale)));
        if (i == 0) reinterpret_cast<uint16_t*>(page + BLOCK_TOKENS * head_dim)[row] = scale;
    } else {
        reinterpret_cast<uint16_t*>(page)[row * head_dim + i] = float_to_f16(x);
    }
}
