// Attention of many tokens a sequence. A block takes a tile: consecutive tokens of one sequence with all query heads of one
// KV head, at most 64 queries, which share each page of K and V. It goes through the entries 64 at a time, causal by slot,
// and keeps a running (m, l, o) a query. What a query gets does not depend on the tile it lies in: entries that it does not
// see are left out of its sums, not multiplied by zero.
#include "device.cuh"
#include "exp.cuh"
#include "kv.cuh"
#include "quantize.cuh"
#include "types.cuh"

const int PREFILL_THREADS = 256;
const int CHUNK = 64; // entries that are scored at once
// Threads form a square: thread (y, x) has the queries y + 16 i, scores of the entries x + 16 j, and of o the elements
// x * 4 ... x * 4 + 3 of every 64.
const int SIDE = 16;
const int PER_THREAD = 4;
// A slice of a row in shared memory is 32 words, 32 f32 or 128 int8, and a gap so that 8 threads meet no bank twice.
const int SLICE_WORDS = 32, SLICE_STRIDE = SLICE_WORDS + 4;
const int WEIGHT_STRIDE = CHUNK + 4;
const int MAX_HEAD_DIM = 256;

struct Slice {
    float4 q[PREFILL_QUERIES * SLICE_STRIDE / 4], k[CHUNK * SLICE_STRIDE / 4];
};

struct PrefillShared {
    union {
        Slice slice;
        float v[BLOCK_TOKENS * MAX_HEAD_DIM]; // a page as f32
        float4 o[PREFILL_QUERIES * SIDE];     // 64 elements of each query, at the end
    };
    float weights[PREFILL_QUERIES * WEIGHT_STRIDE]; // p of a chunk, times V's scales
    float q_scales[PREFILL_QUERIES], k_scales[CHUNK], v_scales[CHUNK];
};

// What a block works on.
struct PrefillWork {
    Tile tile;
    int head_dim, n_heads;
    int first_head, group;
    int queries; // of the tile: tokens times query heads
    int longest; // entries that its last token sees
    HeadRows k, v;

    // Row of q in (n * n_heads) of a query of the tile: heads of a token side by side.
    __device__ __forceinline__ size_t row_of(int query) const {
        return (size_t)(tile.first + query / group) * n_heads + first_head + query % group;
    }
};

// Scores of 4 x 4 pairs of query and entry so far, one slice more.
__device__ __forceinline__ void multiply(float (&sum)[PER_THREAD][PER_THREAD], const float4* q, const float4* k, int words) {
#pragma unroll 1
    for (int word = 0; word < words / 4; word++) {
        float4 query[PER_THREAD];
#pragma unroll
        for (int i = 0; i < PER_THREAD; i++) query[i] = q[i * SIDE * (SLICE_STRIDE / 4) + word];
#pragma unroll
        for (int j = 0; j < PER_THREAD; j++) {
            const float4 key = k[j * SIDE * (SLICE_STRIDE / 4) + word];
#pragma unroll
            for (int i = 0; i < PER_THREAD; i++) {
                sum[i][j] = fmaf(query[i].x, key.x, sum[i][j]);
                sum[i][j] = fmaf(query[i].y, key.y, sum[i][j]);
                sum[i][j] = fmaf(query[i].z, key.z, sum[i][j]);
                sum[i][j] = fmaf(query[i].w, key.w, sum[i][j]);
            }
        }
    }
}

__device__ __forceinline__ void multiply(int (&sum)[PER_THREAD][PER_THREAD], const float4* q, const float4* k, int words) {
#pragma unroll 1
    for (int word = 0; word < words / 4; word++) {
        int4 query[PER_THREAD];
#pragma unroll
        for (int i = 0; i < PER_THREAD; i++)
            query[i] = reinterpret_cast<const int4*>(q)[i * SIDE * (SLICE_STRIDE / 4) + word];
#pragma unroll
        for (int j = 0; j < PER_THREAD; j++) {
            const int4 key = reinterpret_cast<const int4*>(k)[j * SIDE * (SLICE_STRIDE / 4) + word];
#pragma unroll
            for (int i = 0; i < PER_THREAD; i++) {
                sum[i][j] = dp4a(query[i].x, key.x, sum[i][j]);
                sum[i][j] = dp4a(query[i].y, key.y, sum[i][j]);
                sum[i][j] = dp4a(query[i].z, key.z, sum[i][j]);
                sum[i][j] = dp4a(query[i].w, key.w, sum[i][j]);
            }
        }
    }
}

// Scores of all queries with the chunk at `start` of F16 K. What lies past the tile's queries and the entries that it sees
// is zero.
__device__ __forceinline__ void score_chunk_f16(const PrefillWork& work, PrefillShared& shared, int start, const float* q,
                                                float scale, float (&scores)[PER_THREAD][PER_THREAD]) {
    const int x = threadIdx.x % SIDE, y = threadIdx.x / SIDE, head_dim = work.head_dim;
    const int row = threadIdx.x / 4, part = threadIdx.x % 4; // of a slice, eight elements each
    const uint4* key = start + row < work.longest
                           ? reinterpret_cast<const uint4*>(work.k.row(start + row, 2 * head_dim)) + part
                           : nullptr;
    const float4* query =
        row < work.queries ? reinterpret_cast<const float4*>(q + work.row_of(row) * head_dim) + 2 * part : nullptr;
    const float4 zero = {0.0f, 0.0f, 0.0f, 0.0f};
    const int at = row * (SLICE_STRIDE / 4) + 2 * part;
#pragma unroll
    for (int i = 0; i < PER_THREAD; i++)
#pragma unroll
        for (int j = 0; j < PER_THREAD; j++) scores[i][j] = 0.0f;
#pragma unroll 1
    for (int slice = 0; slice < head_dim / SLICE_WORDS; slice++) {
        __syncthreads();
        float k[8];
        widen(key ? key[slice * 4] : uint4{0, 0, 0, 0}, k);
        shared.slice.k[at] = {k[0], k[1], k[2], k[3]};
        shared.slice.k[at + 1] = {k[4], k[5], k[6], k[7]};
        shared.slice.q[at] = query ? query[slice * 8] : zero;
        shared.slice.q[at + 1] = query ? query[slice * 8 + 1] : zero;
        __syncthreads();
        multiply(scores, shared.slice.q + y * (SLICE_STRIDE / 4), shared.slice.k + x * (SLICE_STRIDE / 4), SLICE_WORDS);
    }
#pragma unroll
    for (int i = 0; i < PER_THREAD; i++)
#pragma unroll
        for (int j = 0; j < PER_THREAD; j++) scores[i][j] *= scale;
}

// The same of int8 K and queries: exact integers, times the scales of both and 1 / sqrt(head_dim).
__device__ __forceinline__ void score_chunk_int8(const PrefillWork& work, PrefillShared& shared, int start,
                                                 const int8_t* q, float (&scores)[PER_THREAD][PER_THREAD]) {
    const int x = threadIdx.x % SIDE, y = threadIdx.x / SIDE, head_dim = work.head_dim;
    const int row = threadIdx.x / 4, part = threadIdx.x % 4; // of a slice, 16 bytes at a time
    const float4* key = start + row < work.longest
                            ? reinterpret_cast<const float4*>(work.k.row(start + row, head_dim))
                            : nullptr;
    const float4* query = row < work.queries ? reinterpret_cast<const float4*>(q + work.row_of(row) * head_dim) : nullptr;
    const float4 zero = {0.0f, 0.0f, 0.0f, 0.0f};
    int sum[PER_THREAD][PER_THREAD] = {};
#pragma unroll 1
    for (int first = 0; first < head_dim / 16; first += SLICE_WORDS / 4) {
        const int pieces = min(head_dim / 16 - first, SLICE_WORDS / 4);
        __syncthreads();
        for (int piece = part; piece < pieces; piece += 4) {
            shared.slice.k[row * (SLICE_STRIDE / 4) + piece] = key ? key[first + piece] : zero;
            shared.slice.q[row * (SLICE_STRIDE / 4) + piece] = query ? query[first + piece] : zero;
        }
        __syncthreads();
        multiply(sum, shared.slice.q + y * (SLICE_STRIDE / 4), shared.slice.k + x * (SLICE_STRIDE / 4), pieces * 4);
    }
#pragma unroll
    for (int i = 0; i < PER_THREAD; i++)
#pragma unroll
        for (int j = 0; j < PER_THREAD; j++)
            scores[i][j] = (float)sum[i][j] * (shared.q_scales[y + SIDE * i] * shared.k_scales[x + SIDE * j]);
}

// Puts the page of V at `start` into shared memory as f32; rows that no token of the tile sees are left as they are.
template <class Stored>
__device__ __forceinline__ void stage_values(const PrefillWork& work, float* v, int start) {
    const int row_chunks = work.head_dim / 8, rows = min(work.longest - start, BLOCK_TOKENS);
    const Stored* page = reinterpret_cast<const Stored*>(work.v.page(start));
#pragma unroll 1
    for (int i = threadIdx.x; i < rows * row_chunks; i += PREFILL_THREADS) {
        float x[8];
        widen(page[i], x);
        float4* to = reinterpret_cast<float4*>(v) + 2 * i;
        to[0] = {x[0], x[1], x[2], x[3]};
        to[1] = {x[4], x[5], x[6], x[7]};
    }
}

// Adds p * v of a page to o of four queries, (4, PARTS * 4) elements a thread. `seen`: entries of the page that each query
// sees; with ALL each sees them all.
template <int PARTS, bool ALL>
__device__ __forceinline__ void add_page(const float* weights, const float* v, int head_dim, const int (&seen)[PER_THREAD],
                                         float (&o)[PER_THREAD][PARTS * 4]) {
    const int x = threadIdx.x % SIDE;
#pragma unroll 1
    for (int quad = 0; quad < BLOCK_TOKENS; quad += 4) {
        float p[PER_THREAD][4];
#pragma unroll
        for (int i = 0; i < PER_THREAD; i++) {
            const float4 four = *reinterpret_cast<const float4*>(weights + i * SIDE * WEIGHT_STRIDE + quad);
            p[i][0] = four.x, p[i][1] = four.y, p[i][2] = four.z, p[i][3] = four.w;
        }
#pragma unroll
        for (int row = 0; row < 4; row++)
#pragma unroll
            for (int part = 0; part < PARTS; part++) {
                const int element = part * 64 + x * 4;
                if (element >= head_dim) continue;
                const float4 four = *reinterpret_cast<const float4*>(v + (quad + row) * head_dim + element);
#pragma unroll
                for (int i = 0; i < PER_THREAD; i++) {
                    if (!ALL && quad + row >= seen[i]) continue;
                    float* sum = o[i] + part * 4;
                    sum[0] = fmaf(p[i][row], four.x, sum[0]);
                    sum[1] = fmaf(p[i][row], four.y, sum[1]);
                    sum[2] = fmaf(p[i][row], four.z, sum[2]);
                    sum[3] = fmaf(p[i][row], four.w, sum[3]);
                }
            }
    }
}

// `rotate` of kv.cuh for a head that 16 lanes hold, lane x the elements x * 4 ... x * 4 + 3 of every 64.
template <int PARTS>
__device__ __forceinline__ void rotate_tile(float (&o)[PARTS * 4], int part) {
    auto pair = [&](int a, int b) {
        const float first = o[a], second = o[b];
        o[a] = first + second;
        o[b] = first - second;
    };
    const float norm = 1.0f / sqrtf((float)part);
#pragma unroll
    for (int i = 0; i < PARTS * 4; i += 4) {
        pair(i, i + 1), pair(i + 2, i + 3);
        pair(i, i + 2), pair(i + 1, i + 3);
    }
#pragma unroll
    for (int lanes = 1; lanes < SIDE; lanes *= 2) {
        if (lanes * 4 >= part) continue;
#pragma unroll
        for (int i = 0; i < PARTS * 4; i++)
            o[i] = butterfly(o[i], __shfl_xor_sync(0xffffffffu, o[i], lanes), threadIdx.x & lanes);
    }
#pragma unroll
    for (int apart = 4; apart < PARTS * 4; apart *= 2) {
        if (apart * 16 >= part) continue;
#pragma unroll
        for (int i = 0; i < PARTS * 4; i++)
            if (!(i & apart)) pair(i, i + apart);
    }
#pragma unroll
    for (int i = 0; i < PARTS * 4; i++) o[i] *= norm;
}

// Attention of the tokens of a tile to all entries up to themselves.
// Reads q (n, n_heads, head_dim) f32, or q8 and q8_scale (n, n_heads) beside INT8 K, the pages of the tile's sequence, and
// its tile; writes Rows out (n, n_heads * head_dim) of its tokens. head_dim is at most PARTS * 64.
// Grid (n_kv_heads, tiles), block 256. Longer tiles should come first: the last blocks to start are then the short ones.
// Bound: FMAs, 2 * head_dim a query and entry (half of them dp4a of four with INT8 K); K and V once a tile.
template <int PARTS>
__device__ __forceinline__ void attention_tile(const Step& step, const Heads& heads, const KvLayer& kv, const float* q,
                                               const int8_t* q8, const float* q8_scale, const Tile* tiles,
                                               const Rows& out, PrefillShared& shared) {
    const int x = threadIdx.x % SIDE, y = threadIdx.x / SIDE, kv_head = blockIdx.x;
    PrefillWork work;
    work.tile = tiles[blockIdx.y];
    work.head_dim = heads.head_dim;
    work.n_heads = heads.n_heads;
    work.group = heads.n_heads / heads.n_kv_heads;
    work.first_head = kv_head * work.group;
    work.queries = work.tile.count * work.group;
    work.longest = step.tokens[work.tile.first + work.tile.count - 1].slot + 1;
    const int* pages = step.pages + (size_t)step.tokens[work.tile.first].sequence * step.max_pages;
    work.k = k_rows(kv, pages, kv_head);
    work.v = v_rows(kv, pages, kv_head);

    int visible[PER_THREAD]; // entries that each query sees; none for those past the end of the tile
    float m[PER_THREAD], l[PER_THREAD], o[PER_THREAD][PARTS * 4] = {};
#pragma unroll
    for (int i = 0; i < PER_THREAD; i++) {
        const int query = y + SIDE * i;
        visible[i] = query < work.queries ? step.tokens[work.tile.first + query / work.group].slot + 1 : 0;
        m[i] = -INFINITY;
        l[i] = 0.0f;
    }
    if (kv.k_type == KV_INT8 && threadIdx.x < PREFILL_QUERIES)
        shared.q_scales[threadIdx.x] =
            (int)threadIdx.x < work.queries ? q8_scale[work.row_of(threadIdx.x)] * heads.scale : 0.0f;

#pragma unroll 1
    for (int start = 0; start < work.longest; start += CHUNK) {
        __syncthreads();
        if (threadIdx.x < CHUNK) {
            const int entry = start + threadIdx.x;
            const bool there = entry < work.longest;
            if (kv.k_type == KV_INT8)
                shared.k_scales[threadIdx.x] = there ? f16_to_float(*work.k.scale(entry, work.head_dim)) : 0.0f;
            shared.v_scales[threadIdx.x] =
                there && kv.v_type == KV_INT8 ? f16_to_float(*work.v.scale(entry, work.head_dim)) : 1.0f;
        }
        float scores[PER_THREAD][PER_THREAD];
        if (kv.k_type == KV_INT8)
            score_chunk_int8(work, shared, start, q8, scores);
        else
            score_chunk_f16(work, shared, start, q, heads.scale, scores);

#pragma unroll
        for (int i = 0; i < PER_THREAD; i++) {
            float max = m[i];
#pragma unroll
            for (int j = 0; j < PER_THREAD; j++)
                if (start + x + SIDE * j < visible[i] && scores[i][j] > max) max = scores[i][j];
#pragma unroll
            for (int apart = SIDE / 2; apart > 0; apart >>= 1)
                max = fmaxf(max, __shfl_xor_sync(0xffffffffu, max, apart));
            float sum = 0.0f;
#pragma unroll
            for (int j = 0; j < PER_THREAD; j++) {
                const int entry = x + SIDE * j;
                const float p = start + entry < visible[i] ? exp_as_cpu(scores[i][j] - max) : 0.0f;
                shared.weights[(y + SIDE * i) * WEIGHT_STRIDE + entry] = p * shared.v_scales[entry];
                sum += p;
            }
#pragma unroll
            for (int apart = SIDE / 2; apart > 0; apart >>= 1) sum += __shfl_xor_sync(0xffffffffu, sum, apart);
            const float old = exp_as_cpu(m[i] - max);
            m[i] = max;
            l[i] = l[i] * old + sum;
#pragma unroll
            for (int e = 0; e < PARTS * 4; e++) o[i][e] *= old;
        }

#pragma unroll 1
        for (int page = start; page < min(start + CHUNK, work.longest); page += BLOCK_TOKENS) {
            __syncthreads();
            if (kv.v_type == KV_INT8)
                stage_values<uint2>(work, shared.v, page);
            else
                stage_values<uint4>(work, shared.v, page);
            __syncthreads();
            int seen[PER_THREAD];
            bool all = true;
#pragma unroll
            for (int i = 0; i < PER_THREAD; i++) {
                seen[i] = visible[i] - page;
                all &= seen[i] >= BLOCK_TOKENS;
            }
            const float* weights = shared.weights + y * WEIGHT_STRIDE + (page - start);
            if (all)
                add_page<PARTS, true>(weights, shared.v, work.head_dim, seen, o);
            else
                add_page<PARTS, false>(weights, shared.v, work.head_dim, seen, o);
        }
    }

    // o / l, turned back; then 64 elements of all queries at a time to warps, a group of 32 each
#pragma unroll
    for (int i = 0; i < PER_THREAD; i++) {
#pragma unroll
        for (int e = 0; e < PARTS * 4; e++) o[i][e] /= l[i];
        if (kv.v_type == KV_INT8) rotate_tile<PARTS>(o[i], rotated_part(work.head_dim));
    }
    const int groups = work.head_dim / 32, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
#pragma unroll
    for (int part = 0; part < PARTS; part++) {
        __syncthreads();
#pragma unroll
        for (int i = 0; i < PER_THREAD; i++) {
            const float* own = o[i] + part * 4;
            shared.o[(y + SIDE * i) * SIDE + x] = {own[0], own[1], own[2], own[3]};
        }
        __syncthreads();
        const float* done = reinterpret_cast<const float*>(shared.o);
#pragma unroll 1
        for (int at = warp; at < 2 * work.queries; at += PREFILL_THREADS / 32) {
            const int query = at / 2, group = part * 2 + at % 2;
            if (group >= groups) continue;
            const int head = work.first_head + query % work.group;
            store_group(out, work.tile.first + query / work.group, head * groups + group, done[at * 32 + lane]);
        }
    }
}

#define ATTENTION_PREFILL(HEAD_DIM, BLOCKS)                                                                      \
    KERNEL void __launch_bounds__(PREFILL_THREADS, BLOCKS)                                                       \
    attention_prefill_##HEAD_DIM(Step step, Heads heads, KvLayer kv, const float* __restrict__ q,                \
                                 const int8_t* __restrict__ q8, const float* __restrict__ q8_scale,              \
                                 const Tile* __restrict__ tiles, Rows out) {                                     \
        __shared__ PrefillShared shared;                                                                         \
        attention_tile<HEAD_DIM / 64>(step, heads, kv, q, q8, q8_scale, tiles, out, shared);                     \
    }
ATTENTION_PREFILL(64, 2)
ATTENTION_PREFILL(128, 2)
ATTENTION_PREFILL(256, 1)
