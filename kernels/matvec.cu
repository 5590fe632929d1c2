// The products of a decode step: weights pass once for up to four tokens.
#include "dot.cuh"
#include "exp.cuh"
#include "quantize.cuh"

const int PAIRS = 32; // pairs of rows of gate and up a block: one group of what follows

// The block's matrix and its first row in it; `column` is where that matrix's outputs start.
__device__ __forceinline__ Matrix choose_matrix(const Matrices& matrices, int block, int block_rows, int& row,
                                                int& column) {
    Matrix m = matrices.matrix[0];
    column = 0;
#pragma unroll
    for (int i = 1; i < 3; i++) {
        const int blocks = (m.rows + block_rows - 1) / block_rows;
        if (i >= matrices.count || block < blocks) break;
        block -= blocks;
        column += m.rows;
        m = matrices.matrix[i];
    }
    row = block * block_rows;
    return m;
}

// Both products are one kernel, which differs in how its warps choose rows and in what becomes of the sums: the code of
// all forms is there once. Blocks that share weights follow each other, so that all but the first find them in L2.
template <int T>
__device__ __forceinline__ void decode_product(const Matrices& matrices, const Rows& in, float* out, int out_stride,
                                               const Rows& fused, int n, float (&pairs)[2][T][PAIRS]) {
    const int tiles = (n + T - 1) / T, block = blockIdx.x / tiles;
    const int token = blockIdx.x % tiles * T, live = min(T, n - token);
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, block_rows = blockDim.x / 32 * DOT_ROWS;
    int block_row = block * PAIRS, column = 0;
    Matrix m = matrices.matrix[0];
    if (out) m = choose_matrix(matrices, block, block_rows, block_row, column);
    const int rounds = out ? 1 : 2 * PAIRS / block_rows;
#pragma unroll 1
    for (int round = 0; round < rounds; round++) {
        if (!out) m = matrices.matrix[round & 1];
        const int first = round / 2 * block_rows + warp * DOT_ROWS, row = block_row + first;
        if (row >= m.rows) break;
        float sums[DOT_ROWS][T];
        dot_rows<T>(m, in, row, token, live, sums);
        if (lane != 0) continue;
#pragma unroll
        for (int t = 0; t < T; t++)
#pragma unroll
            for (int r = 0; r < DOT_ROWS; r++) {
                if (!out) pairs[round & 1][t][first + r] = sums[r][t];
                else if (t < live && row + r < m.rows)
                    out[(size_t)(token + t) * out_stride + column + row + r] = sums[r][t];
            }
    }
    if (out) return;
    __syncthreads();
    if (warp < live) store_group(fused, token + warp, block, silu_times(pairs[0][warp][lane], pairs[1][warp][lane]));
}

// y = W x + bias for matrices that share x; or, with no `out`, silu(first y) * second y, quantized for what follows
// reads matrices (rows, cols), in (n, cols); writes out (n, out_stride) f32: columns as rows in all; or fused (n, rows)
// grid n times the blocks of each matrix's rows, two rows a warp; or n times 32 pairs of rows up; block 128 or 256
// bound: the bytes of weights; sm_90 has for 32 of them: Q4_0 18 bytes, 37 instructions; Q4_K 18, 56; Q6_K 26.25, 62;
//        Q8_0 34, 26. (An H200 brings 20 bytes a multiprocessor and clock, and issues 128 instructions.)
KERNEL void __launch_bounds__(256, 3)
    matvec_1(Matrices matrices, Rows in, float* out, int out_stride, Rows fused, int n) {
    __shared__ float pairs[2][1][PAIRS];
    decode_product<1>(matrices, in, out, out_stride, fused, n, pairs);
}

// The same for four tokens a block
// reads matrices (rows, cols), in (n, cols); writes out (n, out_stride) f32: columns as rows in all; or fused (n, rows)
// grid ceil(n / 4) times the blocks of each matrix's rows, or ceil(n / 4) times 32 pairs of rows up; block 128 or 256
// bound: the bytes of weights; on an H200 instructions, for a group and four tokens 94 (Q4_0), 116 (Q4_K), and the 80
//        bytes of activations that pass L1 for a group and row
KERNEL void __launch_bounds__(256, 2)
    matvec_4(Matrices matrices, Rows in, float* out, int out_stride, Rows fused, int n) {
    __shared__ float pairs[2][4][PAIRS];
    decode_product<4>(matrices, in, out, out_stride, fused, n, pairs);
}

// silu(gate) * up after a prefill's products
// reads gate_up (n, 2 * hidden) f32; writes out (n, hidden), as int8, f32 or both; without int8 any hidden
// grid (hidden / 32 up, n), block 32: a warp a group of 32
// bound: 8 bytes read and 1.25 (int8) written an element
KERNEL void silu(const float* gate_up, int hidden, Rows out) {
    const int lane = threadIdx.x, row = blockIdx.y;
    const float* gate = gate_up + (size_t)row * 2 * hidden;
    const int column = min(blockIdx.x * 32 + lane, hidden - 1);
    store_group(out, row, blockIdx.x, silu_times(gate[column], gate[hidden + column]));
}
