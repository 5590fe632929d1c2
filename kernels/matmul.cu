// The products of a prefill: many tokens, int8 tensor cores.
//
// A block computes TILE_ROWS rows times TOKENS tokens and walks along the groups of 32, STAGE at a time: weights are
// unpacked once into shared memory as signed bytes, activations are copied there behind the computation. Each group's
// integer dot product is scaled and added by itself and in order, which is the CPU's arithmetic to the bit: no result
// depends on the other rows and tokens of its tile.
#include "forms.cuh"

const int TILE_ROWS = 64;

// 12582912 as a float. Adding n to its bits adds n to its value while |n| < 2^22, so that a dot product that starts
// here becomes a float by one exact subtraction. The largest is 32 * 127 * 128.
const int FLOAT_BITS = 0x4b400000;
const float FLOAT_START = 12582912.0f;

template <int TOKENS, int STAGE>
struct alignas(16) MatmulShared {
    // 16 bytes behind each row keep the eight rows of a fragment in different banks
    static const int PITCH = STAGE * 32 + 16;
    int8_t w[2][TILE_ROWS][PITCH];
    int8_t x[2][TOKENS][PITCH];
    float w_scale[2][STAGE][TILE_ROWS];
    float w_min[2][STAGE][TILE_ROWS];
    int w_sub[2][STAGE][TILE_ROWS]; // sub and sub_min of both halves, a byte each
    float x_scale[2][STAGE][TOKENS];
    float x_sum[2][STAGE][TOKENS]; // of the levels, times x_scale
    int x_sums[2][STAGE][TOKENS];  // of the levels of both halves, 16 bits each
};

// TOKEN_WARPS warps lie side by side over the tokens, the others below them over the rows.
template <int TOKENS, int STAGE, int TOKEN_WARPS>
struct MatmulTile {
    static const int THREADS = TILE_ROWS * STAGE; // each has one group of weights in a stage
    static const int ROW_PARTS = TILE_ROWS / 16 / (THREADS / 32 / TOKEN_WARPS); // fragments of 16 rows a warp
    static const int TOKEN_PARTS = TOKENS / 8 / TOKEN_WARPS;                    // fragments of 8 tokens a warp

    const Matrix& m;
    const Rows& in;
    MatmulShared<TOKENS, STAGE>& shared;
    const int row, token, n, groups;        // first row and token of the tile; tokens and groups in all
    Packed packed;                          // the thread's group of the next stage, on its way to shared memory
    float acc[ROW_PARTS][TOKEN_PARTS][4];

    // Where the groups of token t of the tile begin. Rows and tokens past the end repeat the last.
    __device__ __forceinline__ size_t x_row(int t) const { return (size_t)min(token + t, n - 1) * groups; }

    // Asks for the groups g.. g + STAGE - 1; those past the end are left out.
    __device__ __forceinline__ void load(int g, int buffer) {
        const int r = threadIdx.x / STAGE, group = g + threadIdx.x % STAGE;
        if (group < groups)
            with_quantized_form(m.form, [&](auto tag) {
                packed = load_group<decltype(tag)::form>(m, (size_t)min(row + r, m.rows - 1) * groups + group, 0);
            });
#pragma unroll 1
        for (int unit = threadIdx.x; unit < TOKENS * STAGE * 2; unit += THREADS) {
            const int t = unit / (STAGE * 2), half = unit % (STAGE * 2);
            if (g + half / 2 < groups)
                cp_async16(shared.x[buffer][t] + half * 16, in.q + (x_row(t) + g) * 32 + half * 16);
        }
        cp_async_commit();
    }

    // Unpacks the weights that `load` brought, beside the scales of the activations.
    __device__ __forceinline__ void store(int g, int buffer) {
        const int r = threadIdx.x / STAGE, k = threadIdx.x % STAGE;
        if (g + k < groups)
            with_quantized_form(m.form, [&](auto tag) {
                constexpr int form = decltype(tag)::form;
                int words[8];
                unpack_signed<form>(packed, load_table<form>(m), words);
                int4* to = reinterpret_cast<int4*>(shared.w[buffer][r] + k * 32);
                to[0] = make_int4(words[0], words[1], words[2], words[3]);
                to[1] = make_int4(words[4], words[5], words[6], words[7]);
                const Scales s = unpack_scales<form>(packed, (g + k) & 7);
                shared.w_scale[buffer][k][r] = s.scale;
                if (has_min(form)) shared.w_min[buffer][k][r] = s.min;
                if (is_split(form))
                    shared.w_sub[buffer][k][r] =
                        (s.sub[0] & 0xff) | (s.sub[1] & 0xff) << 8 | s.sub_min[0] << 16 | s.sub_min[1] << 24;
            });
#pragma unroll
        for (int unit = threadIdx.x; unit < TOKENS * STAGE; unit += THREADS) {
            const int t = unit / STAGE, k = unit % STAGE;
            if (g + k >= groups) continue;
            const XGroup x = in.groups[x_row(t) + g + k];
            shared.x_scale[buffer][k][t] = x.scale;
            shared.x_sum[buffer][k][t] = (float)(x.sum[0] + x.sum[1]) * x.scale;
            shared.x_sums[buffer][k][t] = (x.sum[0] & 0xffff) | x.sum[1] << 16;
        }
    }

    // Adds group k of the stage in `buffer`. Fragments: lane l has rows l / 4 and l / 4 + 8, elements from 4 * (l % 4)
    // on, and of the result tokens 2 * (l % 4) and the next.
    template <bool SPLIT>
    __device__ __forceinline__ void add_group(int buffer, int k, bool min) {
        const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
        const int r = warp / TOKEN_WARPS * ROW_PARTS * 16 + lane / 4, byte = k * 32 + lane % 4 * 4;
        const int t = warp % TOKEN_WARPS * TOKEN_PARTS * 8;
        uint32_t w[ROW_PARTS][4];
        float w_scale[ROW_PARTS][2];
#pragma unroll
        for (int i = 0; i < ROW_PARTS; i++)
#pragma unroll
            for (int h = 0; h < 2; h++) {
                const int at = r + i * 16 + h * 8;
                const int8_t* from = shared.w[buffer][at] + byte;
                w[i][h] = *reinterpret_cast<const uint32_t*>(from);
                w[i][h + 2] = *reinterpret_cast<const uint32_t*>(from + 16);
                w_scale[i][h] = shared.w_scale[buffer][k][at];
            }
#pragma unroll
        for (int j = 0; j < TOKEN_PARTS; j++) {
            const int8_t* from = shared.x[buffer][t + j * 8 + lane / 4] + byte;
            const uint32_t x[2] = {*reinterpret_cast<const uint32_t*>(from),
                                   *reinterpret_cast<const uint32_t*>(from + 16)};
            const float2 pair = *reinterpret_cast<const float2*>(&shared.x_scale[buffer][k][t + j * 8 + lane % 4 * 2]);
            const float x_scale[2] = {pair.x, pair.y};
#pragma unroll
            for (int i = 0; i < ROW_PARTS; i++) {
                const int start = SPLIT ? 0 : FLOAT_BITS;
                int first[4] = {start, start, start, start}, second[4] = {0, 0, 0, 0};
                if (SPLIT) {
                    mma_16816(first, {w[i][0], w[i][1]}, x[0]);
                    mma_16816(second, {w[i][2], w[i][3]}, x[1]);
                } else {
                    mma_16832(first, w[i], x);
                }
#pragma unroll
                for (int e = 0; e < 4; e++) {
                    float sum = __int_as_float(first[e]) - FLOAT_START;
                    if (SPLIT) {
                        const int sub = shared.w_sub[buffer][k][r + i * 16 + e / 2 * 8];
                        sum = (float)((int8_t)(sub & 0xff) * first[e] + (int8_t)(sub >> 8 & 0xff) * second[e]);
                    }
                    acc[i][j][e] = fmaf(sum, w_scale[i][e / 2] * x_scale[e % 2], acc[i][j][e]);
                }
            }
        }
        if (!min) return;
#pragma unroll
        for (int i = 0; i < ROW_PARTS; i++)
#pragma unroll
            for (int j = 0; j < TOKEN_PARTS; j++)
#pragma unroll
                for (int e = 0; e < 4; e++) {
                    const int at = r + i * 16 + e / 2 * 8, of = t + j * 8 + lane % 4 * 2 + e % 2;
                    float x_sum = shared.x_sum[buffer][k][of];
                    if (SPLIT) {
                        const int sub = shared.w_sub[buffer][k][at], sums = shared.x_sums[buffer][k][of];
                        const int dot = (sub >> 16 & 0xff) * (int16_t)(sums & 0xffff) + (sub >> 24) * (sums >> 16);
                        x_sum = (float)dot * shared.x_scale[buffer][k][of];
                    }
                    acc[i][j][e] = fmaf(-shared.w_min[buffer][k][at], x_sum, acc[i][j][e]);
                }
    }

    __device__ __forceinline__ void write(float* out, int out_stride) const {
        const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
#pragma unroll
        for (int i = 0; i < ROW_PARTS; i++)
#pragma unroll
            for (int j = 0; j < TOKEN_PARTS; j++)
#pragma unroll
                for (int e = 0; e < 4; e++) {
                    const int r = row + (warp / TOKEN_WARPS * ROW_PARTS + i) * 16 + lane / 4 + e / 2 * 8;
                    const int t = token + (warp % TOKEN_WARPS * TOKEN_PARTS + j) * 8 + lane % 4 * 2 + e % 2;
                    if (r < m.rows && t < n)
                        out[(size_t)t * out_stride + r] = m.bias ? acc[i][j][e] + m.bias[r] : acc[i][j][e];
                }
    }

    __device__ __forceinline__ void run(float* out, int out_stride) {
        const bool split = is_split(m.form), min = has_min(m.form);
        load(0, 0);
        store(0, 0);
#pragma unroll 1
        for (int g = 0, buffer = 0; g < groups; g += STAGE, buffer ^= 1) {
            // the stage has arrived, and everyone is done with the other buffer
            cp_async_wait<0>();
            __syncthreads();
            if (g + STAGE < groups) load(g + STAGE, buffer ^ 1);
#pragma unroll 1
            for (int k = 0; k < STAGE && g + k < groups; k++) {
                if (split) add_group<true>(buffer, k, min);
                else add_group<false>(buffer, k, min);
            }
            if (g + STAGE < groups) store(g + STAGE, buffer ^ 1);
        }
        write(out, out_stride);
    }
};

// out = W x + bias
// reads a matrix (rows, cols) of a quantized form, in (n, cols) int8; writes out (n, out_stride) f32, rows columns
// grid (n / 64 up, rows / 64 up): blocks that share weights follow each other; block 128: 32 x 32 results a warp
// bound: arithmetic; weights pass n / 64 times (from L2 but for the first), activations rows / 64 times
KERNEL void __launch_bounds__(128, 4) matmul_64(Matrix m, Rows in, float* out, int out_stride, int n) {
    __shared__ MatmulShared<64, 2> shared;
    const int row = blockIdx.y * TILE_ROWS, token = blockIdx.x * 64;
    MatmulTile<64, 2, 2> tile = {m, in, shared, row, token, n, in.cols / 32, {}, {}};
    tile.run(out, out_stride);
}

// The same for few tokens
// reads a matrix (rows, cols) of a quantized form, in (n, cols) int8; writes out (n, out_stride) f32, rows columns
// grid (n / 16 up, rows / 64 up); block 256: 16 x 8 results a warp
// bound: the latency of loads: 256 groups of weights a block on their way
KERNEL void __launch_bounds__(256, 2) matmul_16(Matrix m, Rows in, float* out, int out_stride, int n) {
    __shared__ MatmulShared<16, 4> shared;
    const int row = blockIdx.y * TILE_ROWS, token = blockIdx.x * 16;
    MatmulTile<16, 4, 2> tile = {m, in, shared, row, token, n, in.cols / 32, {}, {}};
    tile.run(out, out_stride);
}

const int FLOAT_TILE = 64;
const int FLOAT_STEP = 16;

// out = W x + bias for float matrices, in f32: one chain of fused multiplications and additions along a row
// reads a matrix (rows, cols) of a float form, in (n, cols) f32; writes out (n, out_stride) f32, rows columns
// grid (n / 64 up, rows / 64 up), block 256: 4 x 4 results a thread
// bound: arithmetic; 128 floats from shared memory for 16 multiplications of a thread
KERNEL void __launch_bounds__(256) matmul_float(Matrix m, Rows in, float* out, int out_stride, int n) {
    __shared__ float w[FLOAT_STEP][FLOAT_TILE + 4], x[FLOAT_STEP][FLOAT_TILE + 4];
    const int row = blockIdx.y * FLOAT_TILE, token = blockIdx.x * FLOAT_TILE, cols = in.cols;
    const int r = threadIdx.x % 16 * 4, t = threadIdx.x / 16 * 4;
    float acc[4][4] = {};
    for (int c = 0; c < cols; c += FLOAT_STEP) {
        for (int i = threadIdx.x; i < FLOAT_TILE * FLOAT_STEP; i += 256) {
            const int line = i / FLOAT_STEP, k = i % FLOAT_STEP;
            if (c + k >= cols) continue;
            const size_t at = (size_t)min(row + line, m.rows - 1) * cols + c + k;
            with_float_form(m.form, [&](auto tag) { w[k][line] = load_float<decltype(tag)::form>(m.quants, at); });
            x[k][line] = in.x[(size_t)min(token + line, n - 1) * cols + c + k];
        }
        __syncthreads();
        for (int k = 0; k < min(FLOAT_STEP, cols - c); k++) {
            const float4 a = *reinterpret_cast<const float4*>(&w[k][r]), b = *reinterpret_cast<const float4*>(&x[k][t]);
            const float rows[4] = {a.x, a.y, a.z, a.w}, tokens[4] = {b.x, b.y, b.z, b.w};
#pragma unroll
            for (int i = 0; i < 4; i++)
#pragma unroll
                for (int j = 0; j < 4; j++) acc[i][j] = fmaf(rows[i], tokens[j], acc[i][j]);
        }
        __syncthreads();
    }
#pragma unroll
    for (int i = 0; i < 4; i++)
#pragma unroll
        for (int j = 0; j < 4; j++) {
            const int to_row = row + r + i, to_token = token + t + j;
            if (to_row < m.rows && to_token < n)
                out[(size_t)to_token * out_stride + to_row] = m.bias ? acc[i][j] + m.bias[to_row] : acc[i][j];
        }
}
