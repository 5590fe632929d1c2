// The dot products of a decode step: two rows of a matrix with T tokens, by one warp.
//
// Two rows share each load of the activations, which come from L1: of the bytes that pass there, a token's 40 a group
// would otherwise outweigh the 16 to 32 of the weights. Lane l takes the groups l, l + 32, ... of both rows one after
// the other, whatever T and the batch are, so that the bits of a (row, token) depend on nothing else.
#pragma once
#include "forms.cuh"

const int DOT_ROWS = 2;

// 32 activations of one token as the products read them.
struct Activations {
    uint4 first, second;
    uint2 group; // XGroup: scale, sums
};

// Of group `group + 32 * step` among those of all tokens.
__device__ __forceinline__ Activations load_activations(const Rows& in, unsigned group, int step) {
    const uint4* q = reinterpret_cast<const uint4*>(in.q) + 2 * group;
    Activations x;
    x.first = q[64 * step];
    x.second = q[64 * step + 1];
    x.group = (reinterpret_cast<const uint2*>(in.groups) + group)[32 * step];
    return x;
}

// Adds a group of one row and one token. The offset of unsigned quants is taken off through the activations' sums.
template <int FORM>
__device__ __forceinline__ float add_group(const int (&w)[8], const Scales& s, const Activations& x, float acc) {
    const int q[8] = {(int)x.first.x,  (int)x.first.y,  (int)x.first.z,  (int)x.first.w,
                      (int)x.second.x, (int)x.second.y, (int)x.second.z, (int)x.second.w};
    const float x_scale = __uint_as_float(x.group.x);
    const int sum[2] = {(int16_t)(x.group.y & 0xffff), (int)x.group.y >> 16};
    if (!is_split(FORM)) {
        int dot = -offset_of(FORM) * (sum[0] + sum[1]);
#pragma unroll
        for (int i = 0; i < 8; i++) dot = dp4a(w[i], q[i], dot);
        acc = fmaf((float)dot, s.scale * x_scale, acc);
        if (has_min(FORM)) acc = fmaf(-s.min, (float)(sum[0] + sum[1]) * x_scale, acc);
    } else {
        int dot[2] = {-offset_of(FORM) * sum[0], -offset_of(FORM) * sum[1]};
#pragma unroll
        for (int i = 0; i < 8; i++) dot[i / 4] = dp4a(w[i], q[i], dot[i / 4]);
        acc = fmaf((float)(s.sub[0] * dot[0] + s.sub[1] * dot[1]), s.scale * x_scale, acc);
        if (has_min(FORM)) acc = fmaf(-s.min, (float)(s.sub_min[0] * sum[0] + s.sub_min[1] * sum[1]) * x_scale, acc);
    }
    return acc;
}

// What a lane loads before it computes: groups 32 apart, of both rows.
template <int FORM, int T>
struct Loaded {
    Packed packed[DOT_ROWS];
    Activations x[T];
};

template <int FORM, int T>
__device__ __forceinline__ void add_step(const Loaded<FORM, T>& loaded, const uint4& table, float (&acc)[DOT_ROWS][T]) {
#pragma unroll
    for (int r = 0; r < DOT_ROWS; r++) {
        int words[8];
        unpack_quants<FORM>(loaded.packed[r], table, words);
        // 256 elements are 8 groups, rows are whole eights of groups where that matters, and lanes move by 32
        const Scales scales = unpack_scales<FORM>(loaded.packed[r], threadIdx.x & 7);
#pragma unroll
        for (int t = 0; t < T; t++) acc[r][t] = add_group<FORM>(words, scales, loaded.x[t], acc[r][t]);
    }
}

template <int FORM, int T>
__device__ __forceinline__ void dot_quantized(const Matrix& m, const Rows& in, const int (&rows)[DOT_ROWS], int token,
                                              int live, float (&acc)[DOT_ROWS][T]) {
    // for one token a lane asks for four groups at once, to keep memory busy; more tokens fill the registers themselves
    const int STEPS = T == 1 ? 2 : 1;
    const unsigned groups = in.cols / 32;
    const uint4 table = load_table<FORM>(m);
#pragma unroll 1
    for (unsigned g = threadIdx.x & 31; g < groups; g += 32 * STEPS) {
        // zeros, because registers that are only sometimes written would be kept from turn to turn
        Loaded<FORM, T> loaded[STEPS] = {};
#pragma unroll
        for (int step = 0; step < STEPS; step++) {
            if (step > 0 && g + 32 * step >= groups) break;
#pragma unroll
            for (int r = 0; r < DOT_ROWS; r++) loaded[step].packed[r] = load_group<FORM>(m, rows[r] * groups + g, step);
#pragma unroll
            for (int t = 0; t < T; t++)
                if (t == 0 || t < live) loaded[step].x[t] = load_activations(in, (token + t) * groups + g, step);
        }
#pragma unroll
        for (int step = 0; step < STEPS; step++) {
            if (step > 0 && g + 32 * step >= groups) break;
            add_step<FORM, T>(loaded[step], table, acc);
        }
    }
}

// Lane l takes eights of elements l, l + 32, ... where rows are whole eights, otherwise single elements.
template <int FORM, int T>
__device__ __forceinline__ void dot_float(const Matrix& m, const Rows& in, const int (&rows)[DOT_ROWS], int token,
                                          int live, float (&acc)[DOT_ROWS][T]) {
    const int lane = threadIdx.x & 31;
    const size_t row_bytes = (size_t)in.cols * (FORM == FORM_F32 ? 4 : 2);
    const uint8_t* w[DOT_ROWS] = {m.quants + rows[0] * row_bytes, m.quants + rows[1] * row_bytes};
    const float* x = in.x + (size_t)token * in.cols;
    if (in.cols % 8 == 0) {
#pragma unroll 2
        for (int i = lane; i < in.cols / 8; i += 32) {
            float weights[DOT_ROWS][8];
#pragma unroll
            for (int r = 0; r < DOT_ROWS; r++) load_floats<FORM>(w[r], i, weights[r]);
#pragma unroll
            for (int t = 0; t < T; t++) {
                if (T > 1 && t >= live) break;
                float values[8];
                load_floats<FORM_F32>(reinterpret_cast<const uint8_t*>(x + (size_t)t * in.cols), i, values);
#pragma unroll
                for (int r = 0; r < DOT_ROWS; r++)
#pragma unroll
                    for (int j = 0; j < 8; j++) acc[r][t] = fmaf(weights[r][j], values[j], acc[r][t]);
            }
        }
    } else {
#pragma unroll 1
        for (int i = lane; i < in.cols; i += 32)
#pragma unroll
            for (int r = 0; r < DOT_ROWS; r++) {
                const float weight = load_float<FORM>(w[r], i);
#pragma unroll
                for (int t = 0; t < T; t++)
                    if (T == 1 || t < live) acc[r][t] = fmaf(weight, x[(size_t)t * in.cols + i], acc[r][t]);
            }
    }
}

// sums[r][t] = row `row + r` times token `token + t`, plus the bias, in every lane. A row past the end repeats the
// last; of T tokens only `live` exist.
template <int T>
__device__ __forceinline__ void dot_rows(const Matrix& m, const Rows& in, int row, int token, int live,
                                         float (&sums)[DOT_ROWS][T]) {
    const int rows[DOT_ROWS] = {row, min(row + 1, m.rows - 1)};
#pragma unroll
    for (int r = 0; r < DOT_ROWS; r++)
#pragma unroll
        for (int t = 0; t < T; t++) sums[r][t] = 0.0f;
    if (m.form < FORM_F32)
        with_quantized_form(m.form, [&](auto tag) {
            dot_quantized<decltype(tag)::form, T>(m, in, rows, token, live, sums);
        });
    else
        with_float_form(m.form, [&](auto tag) { dot_float<decltype(tag)::form, T>(m, in, rows, token, live, sums); });
#pragma unroll
    for (int r = 0; r < DOT_ROWS; r++) {
        const float bias = m.bias ? m.bias[rows[r]] : 0.0f;
#pragma unroll
        for (int t = 0; t < T; t++) {
            sums[r][t] = warp_sum(sums[r][t]);
            if (m.bias) sums[r][t] += bias;
        }
    }
}
