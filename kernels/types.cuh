// What kernels and the host agree on: the structs of src/backend/cuda/params.rs, field by field.
#pragma once

// 32 consecutive activations of one row beside their int8 levels: x[i] is about scale * q[i].
struct alignas(8) XGroup {
    float scale;    // max|x| / 127, as in src/quant/activation.rs; not finite if one of the values was not
    int16_t sum[2]; // of the levels of both halves of 16
};

// How the elements of a matrix are stored on the device; src/backend/cuda/forms.rs makes them. G = cols / 32 groups a row.
// `quants` holds nibbles as (rows, G, 16) bytes, element i of a group in the low and element i + 16 in the high half of
// byte i, or whole bytes as (rows, G, 32).
enum Form : int {
    FORM_Q4_0 = 0,  // nibbles, less 8                                   scales (rows, G) f16
    FORM_Q4_1 = 1,  // nibbles, minimum                                  scales (rows, G) f16 scale, f16 minimum (added)
    FORM_Q5_0 = 2,  // nibbles | bit 4 in high (rows, G) u32, less 16    scales (rows, G) f16
    FORM_Q5_1 = 3,  // nibbles | bit 4 in high (rows, G) u32, minimum    scales (rows, G) f16 scale, f16 minimum (added)
    FORM_Q8_0 = 4,  // bytes                                             scales (rows, G) f16
    FORM_Q4_K = 5,  // nibbles, minimum                                  scales (rows, G / 8, 16): d, dmin f16, 12 bytes as in ggml
    FORM_Q5_K = 6,  // nibbles | bit 4 in high (rows, G) u32, minimum    scales (rows, G / 8, 16): d, dmin f16, 12 bytes as in ggml
    FORM_Q6_K = 7,  // nibbles | bits 4, 5 in high (rows, G, 8), less 32 scales (rows, G, 2) i8, supers (rows, G / 8) f16
    FORM_CODES = 8, // nibbles, indices of a table of 16 i8 in supers    scales (rows, G) f32
    FORM_Q2_K = 9,  // nibbles, minimum                                  scales (rows, G, 2): low nibble scale, high nibble minimum
                    //                                                   of each half; supers (rows, G / 8): d, dmin f16
    FORM_Q3_K = 10, // nibbles, less 4                                   scales (rows, G, 2) i8, supers (rows, G / 8) f16
    FORM_F32 = 11,  // quants (rows, cols) f32; reads x instead of q
    FORM_F16 = 12,  // quants (rows, cols) f16
    FORM_BF16 = 13, // quants (rows, cols) bf16
};
// Of the u32 that holds fifth bits, bit 8 * (i % 4) + i / 4 belongs to element i: a shift and a mask spread those of four
// elements over their bytes. Byte j of Q6_K's 8 holds bits 4 and 5 of elements j, j + 8, j + 16, j + 24, lowest first.

// y = W x + bias
struct alignas(8) Matrix {
    const uint8_t* quants;
    const uint8_t* high;
    const uint8_t* scales;
    const uint8_t* supers;
    const float* bias; // (rows), or null
    int form;
    int rows;
};

// Matrices that share an input; their outputs lie side by side.
struct alignas(8) Matrices {
    Matrix matrix[3];
    int count;
    int unused;
};

// Rows of activations. q and groups may be null where every reader is a float matrix, x where none is.
struct alignas(8) Rows {
    int8_t* q;      // (n, cols)
    XGroup* groups; // (n, cols / 32)
    float* x;       // (n, cols)
    int cols;
    int unused;
};

enum KvType : int { KV_F16 = 0, KV_INT8 = 1 };

// One layer of the paged KV pool (src/kv/layout.rs). Row t of a head in a block: pool + block * block_stride + k_offset +
// head * k_head_bytes + t * row bytes; the 16 f16 scales of INT8 rows follow the 16 rows of their head.
struct alignas(8) KvLayer {
    uint8_t* pool;
    long long block_stride;
    long long k_offset, v_offset;
    int k_head_bytes, v_head_bytes;
    int k_type, v_type; // KvType
};

// A token of the batch: which row of the page table is its sequence's, and how many tokens of it come before.
struct alignas(8) Token {
    int sequence;
    int slot;
};

// The batch, in device memory, so that a captured graph serves every step of its size.
struct alignas(8) Step {
    const Token* tokens; // (n)
    const int* pages;    // (sequences, max_pages): block ids
    const float* cos;    // (n, head_dim / 2)
    const float* sin;    // (n, head_dim / 2)
    int max_pages;
    int unused;
};

// Sizes of the attention of a layer.
struct alignas(8) Heads {
    int n_heads;
    int n_kv_heads;
    int head_dim; // a multiple of 32, at most 256
    float scale;  // 1 / sqrt(head_dim)
};

// The likeliest token of a row of logits.
struct alignas(8) Best {
    int id;
    int finite; // 0 if a logit of the row was NaN or infinite; the id means nothing then
};

// Consecutive tokens of one sequence in the batch that a block of attention_prefill takes.
struct alignas(8) Tile {
    int first; // of the batch
    int count; // with all query heads of a KV head at most PREFILL_QUERIES queries
};

const int PREFILL_QUERIES = 64;
const int BLOCK_TOKENS = 16;
const int SPAN_TOKENS = 256;
