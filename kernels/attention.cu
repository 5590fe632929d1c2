// Attention of one token a sequence, split by spans: the arithmetic of src/backend/cpu/attention.rs, where each span of 256
// entries stands alone and (m, l, o) are merged in order. Only the order of the sums of a score and of o differs.
#include "device.cuh"
#include "exp.cuh"
#include "kv.cuh"
#include "quantize.cuh"
#include "types.cuh"

const int SPAN_THREADS = 256;
const int SPAN_WARPS = SPAN_THREADS / 32;
// Entries of V that a lane takes at once: beside the sums of eight heads there are registers for two.
constexpr int entries_at_once(int h) { return h < 8 ? 4 : 2; }

// Query heads whose o are added up at once at the end, and floats of shared memory that a block needs for that: a lane
// holds 8 elements. Queries and scores lie there before: H * (256 + 256) at most.
constexpr int heads_at_once(int h) { return h < 4 ? h : 4; }
constexpr int span_floats(int h) { return heads_at_once(h) * SPAN_THREADS * 8; }

// What a block works on: H query heads, or fewer, of one KV head, and the first n entries of a span.
struct SpanWork {
    int head_dim;
    int first_head, heads;
    int n;
    HeadRows k, v;
};

// Scores of n entries of F16 K with H queries in shared memory (H, head_dim). Four lanes share a row, 16 bytes of it each
// at a time; a lane has four rows, or two where registers are short, so that what it reads of a query serves them all.
template <int H>
__device__ __forceinline__ void score_f16(const SpanWork& work, const float* q, float scale, float* scores) {
    const int LANES = 4, ROWS = H > 4 ? 2 : 4, STEP = SPAN_THREADS / LANES;
    const int lane = threadIdx.x % LANES, head_dim = work.head_dim;
#pragma unroll 1
    for (int first = threadIdx.x / LANES; first < SPAN_TOKENS; first += ROWS * STEP) {
        const uint4* row[ROWS];
        float sum[ROWS][H] = {};
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            const int entry = first + r * STEP;
            row[r] = entry < work.n ? reinterpret_cast<const uint4*>(work.k.row(entry, 2 * head_dim)) : nullptr;
        }
#pragma unroll 1
        for (int chunk = lane; chunk < head_dim / 8; chunk += LANES) {
            float k[ROWS][8];
#pragma unroll
            for (int r = 0; r < ROWS; r++) widen(row[r] ? row[r][chunk] : uint4{0, 0, 0, 0}, k[r]);
#pragma unroll
            for (int h = 0; h < H; h++) {
                const float4* part = reinterpret_cast<const float4*>(q + h * head_dim + chunk * 8);
                const float4 low = part[0], high = part[1];
                const float query[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
#pragma unroll
                for (int i = 0; i < 8; i++)
#pragma unroll
                    for (int r = 0; r < ROWS; r++) sum[r][h] = fmaf(k[r][i], query[i], sum[r][h]);
            }
        }
#pragma unroll
        for (int r = 0; r < ROWS; r++)
#pragma unroll
            for (int h = 0; h < H; h++) {
                float dot = sum[r][h];
                dot += __shfl_xor_sync(0xffffffffu, dot, 1);
                dot += __shfl_xor_sync(0xffffffffu, dot, 2);
                if (lane == r && row[r]) scores[h * SPAN_TOKENS + first + r * STEP] = dot * scale;
            }
    }
}

// The same with int8 K and queries; q_scales (H) are those of the queries times 1 / sqrt(head_dim). Two lanes share a row,
// a lane has two rows. The products are exact integers.
template <int H>
__device__ __forceinline__ void score_int8(const SpanWork& work, const int8_t* q, const float* q_scales, float* scores) {
    const int LANES = 2, ROWS = 2, STEP = SPAN_THREADS / LANES;
    const int lane = threadIdx.x % LANES, first = threadIdx.x / LANES, head_dim = work.head_dim;
    const uint4* row[ROWS];
    uint16_t k_scale[ROWS] = {};
    int sum[ROWS][H] = {};
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        const int entry = first + r * STEP;
        row[r] = nullptr;
        if (entry < work.n) {
            row[r] = reinterpret_cast<const uint4*>(work.k.row(entry, head_dim));
            k_scale[r] = *work.k.scale(entry, head_dim);
        }
    }
#pragma unroll 2
    for (int chunk = lane; chunk < head_dim / 16; chunk += LANES) {
        uint4 k[ROWS];
#pragma unroll
        for (int r = 0; r < ROWS; r++) k[r] = row[r] ? row[r][chunk] : uint4{0, 0, 0, 0};
#pragma unroll
        for (int h = 0; h < H; h++) {
            const int4 query = *reinterpret_cast<const int4*>(q + h * head_dim + chunk * 16);
#pragma unroll
            for (int r = 0; r < ROWS; r++) {
                sum[r][h] = dp4a((int)k[r].x, query.x, sum[r][h]);
                sum[r][h] = dp4a((int)k[r].y, query.y, sum[r][h]);
                sum[r][h] = dp4a((int)k[r].z, query.z, sum[r][h]);
                sum[r][h] = dp4a((int)k[r].w, query.w, sum[r][h]);
            }
        }
    }
#pragma unroll
    for (int r = 0; r < ROWS; r++)
#pragma unroll
        for (int h = 0; h < H; h++) {
            const int dot = sum[r][h] + __shfl_xor_sync(0xffffffffu, sum[r][h], 1);
            const float weight = q_scales[h] * f16_to_float(k_scale[r]);
            if (lane == r && row[r]) scores[h * SPAN_TOKENS + first + r * STEP] = (float)dot * weight;
        }
}

// A warp's softmax of n scores of one query: p = exp(score - m) in their place, zeros behind them, times the scales of V
// where that is INT8. Returns m and l, the sum of p in the order of src/backend/cpu/simd/scalar.rs.
__device__ __forceinline__ float2 softmax_span(float* scores, const SpanWork& work, bool v_is_int8) {
    const int PER_LANE = SPAN_TOKENS / 32, lane = threadIdx.x % 32, n = work.n;
    float p[PER_LANE], v_scale[PER_LANE];
    float max = -INFINITY;
#pragma unroll
    for (int j = 0; j < PER_LANE; j++) {
        const int entry = lane + 32 * j;
        v_scale[j] = v_is_int8 && entry < n ? f16_to_float(*work.v.scale(entry, work.head_dim)) : 1.0f;
        p[j] = entry < n ? scores[entry] : -INFINITY;
        max = p[j] > max ? p[j] : max;
    }
    max = warp_max(max);
#pragma unroll
    for (int j = 0; j < PER_LANE; j++) {
        p[j] = lane + 32 * j < n ? exp_as_cpu(p[j] - max) : 0.0f;
        scores[lane + 32 * j] = p[j];
    }
    __syncwarp();
    // sixteen interleaved sums, then a tree
    float l = 0.0f;
    if (lane < 16)
        for (int entry = lane; entry < n; entry += 16) l += scores[entry];
#pragma unroll
    for (int apart = 8; apart > 0; apart >>= 1) l += __shfl_xor_sync(0xffffffffu, l, apart);
    __syncwarp();
    if (v_is_int8) {
#pragma unroll
        for (int j = 0; j < PER_LANE; j++) scores[lane + 32 * j] = p[j] * v_scale[j];
    }
    return {max, l};
}

// p of entries that follow each other, in one load.
__device__ __forceinline__ void load_weights(const float* p, float (&weights)[2]) {
    const float2 both = *reinterpret_cast<const float2*>(p);
    weights[0] = both.x, weights[1] = both.y;
}

__device__ __forceinline__ void load_weights(const float* p, float (&weights)[4]) {
    const float4 four = *reinterpret_cast<const float4*>(p);
    weights[0] = four.x, weights[1] = four.y, weights[2] = four.z, weights[3] = four.w;
}

// Adds p * v of the entries of every `runs`-th run to o (H, 8), the elements of V's rows that are this lane's. Stored is
// what holds eight of them.
template <int H, class Stored>
__device__ __forceinline__ void add_values(const SpanWork& work, const float* p, int first_run, int runs, int chunk,
                                           float (&o)[H][8]) {
    const int row_chunks = work.head_dim / 8, ENTRIES = entries_at_once(H);
    // they never lie in two pages
#pragma unroll 1
    for (int entry = first_run * ENTRIES; entry < work.n; entry += runs * ENTRIES) {
        const Stored* rows =
            reinterpret_cast<const Stored*>(work.v.row(entry, row_chunks * (int)sizeof(Stored))) + chunk;
        Stored stored[ENTRIES] = {};
#pragma unroll
        for (int i = 0; i < ENTRIES; i++)
            if (entry + i < work.n) stored[i] = rows[i * row_chunks];
        float v[ENTRIES][8];
#pragma unroll
        for (int i = 0; i < ENTRIES; i++) widen(stored[i], v[i]);
#pragma unroll
        for (int h = 0; h < H; h++) {
            float weights[ENTRIES];
            load_weights(p + h * SPAN_TOKENS + entry, weights);
#pragma unroll
            for (int i = 0; i < ENTRIES; i++)
#pragma unroll
                for (int e = 0; e < 8; e++) o[h][e] = fmaf(weights[i], v[i][e], o[h][e]);
        }
    }
}

// One span of one token's attention for up to H query heads of a KV head, which share each read of K and V: (m, l, o).
// Reads q (n, n_heads, head_dim) f32, or q8 and q8_scale (n, n_heads) beside INT8 K, and the pages of the token's sequence;
// writes partial (n, n_heads, max_spans, head_dim + 2): o not divided by l, m, l; nothing where the token has no such span.
// Grid (n_kv_heads * ceil(group / H), spans, n), block 256. `shared` holds span_floats(H), `q_scales` H.
// Bound: K and V once from memory, 1024 * head_dim bytes a span of F16, 512 * head_dim + 1 KB of INT8.
template <int H>
__device__ __forceinline__ void attention_span(const Step& step, const Heads& heads, const KvLayer& kv, const float* q,
                                               const int8_t* q8, const float* q8_scale, float* partial, int max_spans,
                                               float* shared, float* q_scales) {
    const int head_dim = heads.head_dim, span = blockIdx.y, token = blockIdx.z;
    const Token place = step.tokens[token];
    SpanWork work;
    work.head_dim = head_dim;
    work.n = min(place.slot + 1 - span * SPAN_TOKENS, SPAN_TOKENS);
    if (work.n <= 0 || span >= max_spans) return;
    const int group = heads.n_heads / heads.n_kv_heads, parts = (group + H - 1) / H;
    const int kv_head = blockIdx.x / parts, part = blockIdx.x % parts;
    work.first_head = kv_head * group + part * H;
    work.heads = min(group - part * H, H);
    const int* pages = step.pages + (size_t)place.sequence * step.max_pages + span * (SPAN_TOKENS / BLOCK_TOKENS);
    work.k = k_rows(kv, pages, kv_head);
    work.v = v_rows(kv, pages, kv_head);

    float* scores = shared;                    // (H, 256)
    float* queries = shared + H * SPAN_TOKENS; // (H, head_dim), f32 or int8; zeros for heads there are none of
    const size_t first_query = (size_t)token * heads.n_heads + work.first_head;
    const int elements = work.heads * head_dim;
    if (kv.k_type == KV_INT8) {
        int8_t* queries8 = reinterpret_cast<int8_t*>(queries);
        for (int i = threadIdx.x * 4; i < H * head_dim; i += SPAN_THREADS * 4)
            *reinterpret_cast<int*>(queries8 + i) =
                i < elements ? *reinterpret_cast<const int*>(q8 + first_query * head_dim + i) : 0;
        if (threadIdx.x < H)
            q_scales[threadIdx.x] =
                (int)threadIdx.x < work.heads ? q8_scale[first_query + threadIdx.x] * heads.scale : 0.0f;
        __syncthreads();
        score_int8<H>(work, queries8, q_scales, scores);
    } else {
        for (int i = threadIdx.x; i < H * head_dim; i += SPAN_THREADS)
            queries[i] = i < elements ? q[first_query * head_dim + i] : 0.0f;
        __syncthreads();
        score_f16<H>(work, queries, heads.scale, scores);
    }
    __syncthreads();

    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, stride = max_spans * (head_dim + 2);
    float* out = partial + (first_query * max_spans + span) * (head_dim + 2);
    if (warp < H) {
        const float2 ml = softmax_span(scores + warp * SPAN_TOKENS, work, kv.v_type == KV_INT8);
        if (lane == 0 && warp < work.heads) {
            out[warp * stride + head_dim] = ml.x;
            out[warp * stride + head_dim + 1] = ml.y;
        }
    }
    __syncthreads();

    // head_dim / 8 lanes hold a row of V; where that is no power of two a few lanes of a warp are idle
    const int row_lanes = heads.head_dim / 8, warp_runs = 32 / row_lanes, runs = SPAN_WARPS * warp_runs;
    const int chunk = lane % row_lanes, run = warp * warp_runs + lane / row_lanes;
    const bool active = lane < warp_runs * row_lanes;
    float o[H][8] = {};
    if (active) {
        if (kv.v_type == KV_INT8)
            add_values<H, uint2>(work, scores, run, runs, chunk, o);
        else
            add_values<H, uint4>(work, scores, run, runs, chunk, o);
    }
    const int AT_ONCE = heads_at_once(H);
#pragma unroll
    for (int first = 0; first < H; first += AT_ONCE) {
        __syncthreads();
        if (active) {
#pragma unroll
            for (int h = 0; h < AT_ONCE; h++) {
                float4* sums = reinterpret_cast<float4*>(shared + (h * runs + run) * head_dim + chunk * 8);
                const float* own = o[first + h];
                sums[0] = {own[0], own[1], own[2], own[3]};
                sums[1] = {own[4], own[5], own[6], own[7]};
            }
        }
        __syncthreads();
        const int wanted = min(work.heads - first, AT_ONCE) * head_dim;
#pragma unroll 1
        for (int i = threadIdx.x; i < wanted; i += SPAN_THREADS) {
            const int h = i / head_dim, element = i % head_dim;
            const float* sums = shared + h * runs * head_dim + element;
            float sum = 0.0f;
#pragma unroll 4
            for (int from = 0; from < runs; from++) sum += sums[from * head_dim];
            out[(first + h) * stride + element] = sum;
        }
    }
}

#define ATTENTION_SPANS(H)                                                                                              \
    KERNEL void __launch_bounds__(SPAN_THREADS, 2)                                                                      \
    attention_spans_##H(Step step, Heads heads, KvLayer kv, const float* __restrict__ q, const int8_t* __restrict__ q8, \
                        const float* __restrict__ q8_scale, float* __restrict__ partial, int max_spans) {              \
        __shared__ __align__(16) float shared[span_floats(H)];                                                         \
        __shared__ float q_scales[H];                                                                                   \
        attention_span<H>(step, heads, kv, q, q8, q8_scale, partial, max_spans, shared, q_scales);                      \
    }
ATTENTION_SPANS(1)
ATTENTION_SPANS(4)
ATTENTION_SPANS(8)

// The spans of a token and head put together in order, divided by l; what V's rotation did is undone.
// Reads partial (n, n_heads, max_spans, head_dim + 2) as far as the token has spans; writes Rows out (n, n_heads * head_dim).
// Grid (n_heads, n), block head_dim: an element a thread.
// Bound: latency at short contexts; else 4 bytes an element and span.
KERNEL void __launch_bounds__(256)
attention_merge(Step step, Heads heads, KvLayer kv, const float* __restrict__ partial, int max_spans, Rows out) {
    __shared__ float exchange[256];
    const int i = threadIdx.x, head_dim = heads.head_dim, head = blockIdx.x, token = blockIdx.y;
    const int spans = min(step.tokens[token].slot / SPAN_TOKENS + 1, max_spans);
    partial += ((size_t)token * heads.n_heads + head) * max_spans * (head_dim + 2);
    float o = partial[i], m = partial[head_dim], l = partial[head_dim + 1];
#pragma unroll 4
    for (int span = 1; span < spans; span++) {
        const float* next = partial + (size_t)span * (head_dim + 2);
        const float span_o = next[i], span_m = next[head_dim], span_l = next[head_dim + 1];
        const float max = span_m > m ? span_m : m;
        const float old = exp_as_cpu(m - max), added = exp_as_cpu(span_m - max);
        m = max;
        l = l * old + span_l * added;
        o = o * old + span_o * added;
    }
    o /= l;
    if (kv.v_type == KV_INT8) o = rotate(o, head_dim, exchange);
    store_group(out, token, (head * head_dim + i) / 32, o);
}
