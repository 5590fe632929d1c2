// How a group of 32 weights comes out of its planes: the values of `Group` in src/quant/mod.rs.
//
// A group is known by its number in the whole matrix, row * (cols / 32) + group, which indexes every plane. Loading and
// unpacking are two steps, so that the loads of several groups are in flight before the first is unpacked. What a form
// does not use is never loaded and costs no register.
#pragma once
#include "device.cuh"
#include "types.cuh"

// What a form takes off its unsigned quants.
constexpr int offset_of(int form) {
    return form == FORM_Q4_0 ? 8 : form == FORM_Q5_0 ? 16 : form == FORM_Q6_K ? 32 : form == FORM_Q3_K ? 4 : 0;
}
constexpr bool has_min(int form) {
    return form == FORM_Q4_1 || form == FORM_Q5_1 || form == FORM_Q4_K || form == FORM_Q5_K || form == FORM_Q2_K;
}
// Whether halves of 16 have integer scales of their own.
constexpr bool is_split(int form) {
    return form == FORM_Q6_K || form == FORM_Q2_K || form == FORM_Q3_K;
}
constexpr bool has_fifth_bits(int form) {
    return form == FORM_Q5_0 || form == FORM_Q5_1 || form == FORM_Q5_K;
}
constexpr bool has_packed_scales(int form) {
    return form == FORM_Q4_K || form == FORM_Q5_K;
}

// A group as loaded.
struct Packed {
    uint4 quants;
    uint4 more;            // the other 16 of whole bytes; of packed scales ggml's 12 bytes, in y, z, w
    uint2 high;            // one word of fifth bits, two of bits 4 and 5
    unsigned scales;       // those of the group; of packed scales d and dmin
    unsigned super_scales; // of the 256 elements around it
};

// The scales of a group, as in `Group`: element i is scale * sub[i / 16] * q[i] - min * sub_min[i / 16].
struct Scales {
    float scale, min;
    int sub[2], sub_min[2];
};

// Element i of an array at a 32-bit distance, which is one instruction; what is added to a pointer is none.
template <class T>
__device__ __forceinline__ const T* element(const uint8_t* plane, unsigned i) {
    return reinterpret_cast<const T*>(plane) + i;
}

// Group `group + 32 * step`.
template <int FORM>
__device__ __forceinline__ Packed load_group(const Matrix& m, unsigned group, int step) {
    Packed p = {};
    if (FORM == FORM_Q8_0) {
        const uint4* quants = element<uint4>(m.quants, 2 * group);
        p.quants = quants[64 * step];
        p.more = quants[64 * step + 1];
    } else {
        p.quants = element<uint4>(m.quants, group)[32 * step];
    }
    if (has_fifth_bits(FORM)) p.high.x = element<uint32_t>(m.high, group)[32 * step];
    if (FORM == FORM_Q6_K) p.high = element<uint2>(m.high, group)[32 * step];
    if (has_packed_scales(FORM)) {
        p.more = element<uint4>(m.scales, group / 8)[4 * step];
        p.scales = p.more.x;
    } else if (FORM == FORM_Q4_1 || FORM == FORM_Q5_1 || FORM == FORM_CODES) {
        p.scales = element<uint32_t>(m.scales, group)[32 * step];
    } else {
        p.scales = element<uint16_t>(m.scales, group)[32 * step];
    }
    if (FORM == FORM_Q2_K) p.super_scales = element<uint32_t>(m.supers, group / 8)[4 * step];
    if (FORM == FORM_Q6_K || FORM == FORM_Q3_K) p.super_scales = element<uint16_t>(m.supers, group / 8)[4 * step];
    return p;
}

// The 16 values that codes stand for.
template <int FORM>
__device__ __forceinline__ uint4 load_table(const Matrix& m) {
    if (FORM == FORM_CODES) return *reinterpret_cast<const uint4*>(m.supers);
    return make_uint4(0, 0, 0, 0);
}

// Eight codes (the nibbles of q) -> the values of the low nibbles and those of the high ones.
__device__ __forceinline__ void look_up(unsigned q, const uint4& table, int& low, int& high) {
    const unsigned index = q & 0x77777777u;
    // byte i of the lower table, or of the upper one if the code's bit 3 is set
    const unsigned choice = 0x32103210u | (q >> 1 & 0x44444444u);
    unsigned values[2];
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const unsigned lower = __byte_perm(table.x, table.y, index >> 16 * i);
        const unsigned upper = __byte_perm(table.z, table.w, index >> 16 * i);
        values[i] = __byte_perm(lower, upper, choice >> 16 * i);
    }
    low = __byte_perm(values[0], values[1], 0x6420);
    high = __byte_perm(values[0], values[1], 0x7531);
}

// The quants, elements 4i.. 4i + 3 in word i; `offset_of` is still in them.
template <int FORM>
__device__ __forceinline__ void unpack_quants(const Packed& p, const uint4& table, int (&words)[8]) {
    const unsigned q[4] = {p.quants.x, p.quants.y, p.quants.z, p.quants.w};
#pragma unroll
    for (int i = 0; i < 4; i++) {
        if (FORM == FORM_CODES) {
            look_up(q[i], table, words[i], words[i + 4]);
        } else if (FORM == FORM_Q8_0) {
            words[i] = q[i];
        } else {
            words[i] = q[i] & 0x0f0f0f0f;
            words[i + 4] = q[i] >> 4 & 0x0f0f0f0f;
        }
    }
    if (FORM == FORM_Q8_0) {
        words[4] = p.more.x, words[5] = p.more.y, words[6] = p.more.z, words[7] = p.more.w;
    }
    if (has_fifth_bits(FORM)) {
#pragma unroll
        for (int i = 0; i < 8; i++) words[i] |= (i < 4 ? p.high.x << (4 - i) : p.high.x >> (i - 4)) & 0x10101010;
    }
    if (FORM == FORM_Q6_K) {
#pragma unroll
        for (int i = 0; i < 8; i++) {
            const unsigned bits = i % 2 ? p.high.y : p.high.x;
            words[i] |= (i < 4 ? bits << (4 - i / 2 * 2) : bits >> (i / 2 * 2 - 4)) & 0x30303030;
        }
    }
}

// The quants as signed bytes. No byte carries into the next: all stay within 0..255 until the last step.
template <int FORM>
__device__ __forceinline__ void unpack_signed(const Packed& p, const uint4& table, int (&words)[8]) {
    unpack_quants<FORM>(p, table, words);
    if (offset_of(FORM) != 0) {
        const unsigned to_signed = (0x80u - offset_of(FORM)) * 0x01010101u;
#pragma unroll
        for (int i = 0; i < 8; i++) words[i] = ((unsigned)words[i] + to_signed) ^ 0x80808080u;
    }
}

__device__ __forceinline__ float f16_low(unsigned pair) {
    return f16_to_float((uint16_t)(pair & 0xffff));
}
__device__ __forceinline__ float f16_high(unsigned pair) {
    return f16_to_float((uint16_t)(pair >> 16));
}

// The scale (bits 0..5) and minimum (bits 8..13) of group j of 8 in ggml's 12 packed bytes; no branch, for a warp holds
// all j. For j < 4 they are the low six bits of bytes j and 4 + j; above, those bytes lend their top two bits.
__device__ __forceinline__ unsigned unpack_scale_min(unsigned w0, unsigned w1, unsigned w2, int j) {
    const unsigned byte = j & 3;
    const unsigned both = __byte_perm(w0, w1, byte | (byte + 4) << 4);
    const unsigned nibbles = __byte_perm(w2, w2, byte | byte << 4);
    const unsigned upper = (both >> 2 & 0x3030) | (nibbles & 0x000f) | (nibbles >> 4 & 0x0f00);
    return j < 4 ? both & 0x3f3f : upper;
}

// `in_super` is the group's number among the 8 of its 256 elements.
template <int FORM>
__device__ __forceinline__ Scales unpack_scales(const Packed& p, int in_super) {
    Scales s;
    s.min = 0.0f;
    s.sub[0] = s.sub[1] = s.sub_min[0] = s.sub_min[1] = 1;
    if (has_packed_scales(FORM)) {
        const unsigned packed = unpack_scale_min(p.more.y, p.more.z, p.more.w, in_super);
        s.scale = f16_low(p.scales) * (float)(packed & 0xff);
        s.min = f16_high(p.scales) * (float)(packed >> 8);
    } else if (is_split(FORM)) {
        s.scale = f16_low(p.super_scales);
        if (FORM == FORM_Q2_K) {
            s.min = f16_high(p.super_scales);
            s.sub[0] = p.scales & 15, s.sub_min[0] = p.scales >> 4 & 15;
            s.sub[1] = p.scales >> 8 & 15, s.sub_min[1] = p.scales >> 12 & 15;
        } else {
            s.sub[0] = (int8_t)(p.scales & 0xff), s.sub[1] = (int8_t)(p.scales >> 8 & 0xff);
        }
    } else if (FORM == FORM_CODES) {
        s.scale = __uint_as_float(p.scales);
    } else {
        s.scale = f16_low(p.scales);
        if (has_min(FORM)) s.min = -f16_high(p.scales);
    }
    return s;
}

template <int FORM>
struct FormTag {
    static constexpr int form = FORM;
};

// Calls `body` with the tag of a quantized form.
template <class Body>
__device__ __forceinline__ void with_quantized_form(int form, Body body) {
    switch (form) {
        case FORM_Q4_0: return body(FormTag<FORM_Q4_0>());
        case FORM_Q4_1: return body(FormTag<FORM_Q4_1>());
        case FORM_Q5_0: return body(FormTag<FORM_Q5_0>());
        case FORM_Q5_1: return body(FormTag<FORM_Q5_1>());
        case FORM_Q8_0: return body(FormTag<FORM_Q8_0>());
        case FORM_Q4_K: return body(FormTag<FORM_Q4_K>());
        case FORM_Q5_K: return body(FormTag<FORM_Q5_K>());
        case FORM_Q6_K: return body(FormTag<FORM_Q6_K>());
        case FORM_CODES: return body(FormTag<FORM_CODES>());
        case FORM_Q2_K: return body(FormTag<FORM_Q2_K>());
        case FORM_Q3_K: return body(FormTag<FORM_Q3_K>());
    }
}

// Calls `body` with the tag of a float form.
template <class Body>
__device__ __forceinline__ void with_float_form(int form, Body body) {
    switch (form) {
        case FORM_F32: return body(FormTag<FORM_F32>());
        case FORM_F16: return body(FormTag<FORM_F16>());
        case FORM_BF16: return body(FormTag<FORM_BF16>());
    }
}

// Element i of an array of floats.
template <int FORM>
__device__ __forceinline__ float load_float(const uint8_t* row, size_t i) {
    if (FORM == FORM_F32) return reinterpret_cast<const float*>(row)[i];
    const uint16_t bits = reinterpret_cast<const uint16_t*>(row)[i];
    return FORM == FORM_F16 ? f16_to_float(bits) : bf16_to_float(bits);
}

// Elements 8i.. 8i + 7 of a row that starts at a multiple of 16 bytes.
template <int FORM>
__device__ __forceinline__ void load_floats(const uint8_t* row, int i, float (&x)[8]) {
    if (FORM == FORM_F32) {
        const float4* at = reinterpret_cast<const float4*>(row) + 2 * i;
        const float4 a = at[0], b = at[1];
        x[0] = a.x, x[1] = a.y, x[2] = a.z, x[3] = a.w, x[4] = b.x, x[5] = b.y, x[6] = b.z, x[7] = b.w;
    } else {
        const uint4 packed = reinterpret_cast<const uint4*>(row)[i];
        const unsigned pairs[4] = {packed.x, packed.y, packed.z, packed.w};
#pragma unroll
        for (int j = 0; j < 4; j++) {
            const uint16_t low = (uint16_t)(pairs[j] & 0xffff), high = (uint16_t)(pairs[j] >> 16);
            x[2 * j] = FORM == FORM_F16 ? f16_to_float(low) : bf16_to_float(low);
            x[2 * j + 1] = FORM == FORM_F16 ? f16_to_float(high) : bf16_to_float(high);
        }
    }
}
