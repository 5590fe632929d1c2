// Types and arithmetic of CUDA C++ that g++ lacks. What is here is rounded as the hardware rounds it, except for the
// functions that the hardware approximates (__expf and the like).
#pragma once
#include <algorithm>

#define EMULATED_VECTORS(T, name, alignment2, alignment4)                                              \
    struct alignas(alignment2) name##2 { T x, y; };                                                    \
    struct name##3 { T x, y, z; };                                                                     \
    struct alignas(alignment4) name##4 { T x, y, z, w; };                                              \
    inline name##2 make_##name##2(T x, T y) { return {x, y}; }                                         \
    inline name##3 make_##name##3(T x, T y, T z) { return {x, y, z}; }                                 \
    inline name##4 make_##name##4(T x, T y, T z, T w) { return {x, y, z, w}; }

EMULATED_VECTORS(signed char, char, 2, 4)
EMULATED_VECTORS(unsigned char, uchar, 2, 4)
EMULATED_VECTORS(short, short, 4, 8)
EMULATED_VECTORS(unsigned short, ushort, 4, 8)
EMULATED_VECTORS(int, int, 8, 16)
EMULATED_VECTORS(unsigned int, uint, 8, 16)
EMULATED_VECTORS(float, float, 8, 16)

// CUDA's min and max take any pair of arithmetic types; g++'s want twice the same.
template <class A, class B>
auto min(A a, B b) -> std::common_type_t<A, B> {
    using T = std::common_type_t<A, B>;
    if constexpr (std::is_floating_point_v<T>) return std::fmin(T(a), T(b));
    else return T(a) < T(b) ? T(a) : T(b);
}
template <class A, class B>
auto max(A a, B b) -> std::common_type_t<A, B> {
    using T = std::common_type_t<A, B>;
    if constexpr (std::is_floating_point_v<T>) return std::fmax(T(a), T(b));
    else return T(a) < T(b) ? T(b) : T(a);
}
using std::abs;
using std::isfinite;
using std::isinf;
using std::isnan;

template <class To, class From>
To emulated_bits(From from) {
    static_assert(sizeof(To) == sizeof(From));
    To to;
    memcpy(&to, &from, sizeof to);
    return to;
}
inline int __float_as_int(float x) { return emulated_bits<int>(x); }
inline unsigned __float_as_uint(float x) { return emulated_bits<unsigned>(x); }
inline float __int_as_float(int x) { return emulated_bits<float>(x); }
inline float __uint_as_float(unsigned x) { return emulated_bits<float>(x); }

// ---- f16
struct __half {
    uint16_t bits;
    __half() = default;
    __half(float x) : bits(uint16_t(_cvtss_sh(x, _MM_FROUND_TO_NEAREST_INT))) {}
    operator float() const { return _cvtsh_ss(bits); }
};
using half = __half;
struct alignas(4) __half2 {
    __half x, y;
};
using half2 = __half2;
inline float __half2float(__half h) { return h; }
inline __half __float2half(float x) { return __half(x); }
inline __half __float2half_rn(float x) { return __half(x); }
inline uint16_t __half_as_ushort(__half h) { return h.bits; }
inline __half __ushort_as_half(uint16_t bits) { return emulated_bits<__half>(bits); }
inline float2 __half22float2(__half2 h) { return {float(h.x), float(h.y)}; }
inline __half2 __floats2half2_rn(float x, float y) { return {__half(x), __half(y)}; }
inline float __low2float(__half2 h) { return h.x; }
inline float __high2float(__half2 h) { return h.y; }
inline __half2 __halves2half2(__half x, __half y) { return {x, y}; }

// ---- Rounding to integers; out of range and NaN as PTX's cvt: clamped, zero.
inline int emulated_to_int(float rounded) {
    if (std::isnan(rounded)) return 0;
    if (rounded >= 2147483648.0f) return INT32_MAX;
    return rounded <= -2147483648.0f ? INT32_MIN : int(rounded);
}
inline int __float2int_rn(float x) { return emulated_to_int(nearbyintf(x)); }
inline int __float2int_rz(float x) { return emulated_to_int(truncf(x)); }
inline int __float2int_rd(float x) { return emulated_to_int(floorf(x)); }
inline int __float2int_ru(float x) { return emulated_to_int(ceilf(x)); }
inline float __int2float_rn(int x) { return float(x); }
inline float __uint2float_rn(unsigned x) { return float(x); }

// ---- Float arithmetic by name
inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fsub_rn(float a, float b) { return a - b; }
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fdiv_rn(float a, float b) { return a / b; }
inline float __fmaf_rn(float a, float b, float c) { return fmaf(a, b, c); }
inline float __fsqrt_rn(float x) { return sqrtf(x); }
inline float __frcp_rn(float x) { return 1.0f / x; }
inline float __fdividef(float a, float b) { return a / b; }
inline float __expf(float x) { return expf(x); }
inline float __logf(float x) { return logf(x); }
inline float rsqrtf(float x) { return 1.0f / sqrtf(x); }

// ---- Bits
inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline int __clz(int x) { return x ? __builtin_clz(unsigned(x)) : 32; }
inline int __ffs(int x) { return __builtin_ffs(x); }
inline unsigned __byte_perm(unsigned low, unsigned high, unsigned selector) {
    uint64_t bytes = uint64_t(high) << 32 | low;
    unsigned result = 0;
    for (int i = 0; i < 4; i++) {
        unsigned which = selector >> (4 * i) & 15;
        unsigned byte = bytes >> (8 * (which & 7)) & 255;
        result |= (which & 8 ? (byte & 128 ? 255u : 0u) : byte) << (8 * i);
    }
    return result;
}
// Byte by byte, wrapping: the carries between bytes are taken out.
inline unsigned __vadd4(unsigned a, unsigned b) {
    return ((a & 0x7f7f7f7fu) + (b & 0x7f7f7f7fu)) ^ ((a ^ b) & 0x80808080u);
}
inline unsigned __vsub4(unsigned a, unsigned b) {
    return ((a | 0x80808080u) - (b & 0x7f7f7f7fu)) ^ ((a ^ ~b) & 0x80808080u);
}

template <class T>
T __ldg(const T* address) {
    return *address;
}
template <class T>
T __ldcs(const T* address) {
    return *address;
}
inline void __threadfence() {}
inline void __threadfence_block() {}

// ---- Atomics: real ones, so that ThreadSanitizer knows them.
template <class T, class Change>
T emulated_atomic(T* address, Change change) {
    static_assert(sizeof(T) == 4);
    uint32_t* word = reinterpret_cast<uint32_t*>(address);
    uint32_t seen = __atomic_load_n(word, __ATOMIC_RELAXED);
    for (;;) {
        T old = emulated_bits<T>(seen);
        uint32_t wanted = emulated_bits<uint32_t>(T(change(old)));
        if (__atomic_compare_exchange_n(word, &seen, wanted, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) return old;
    }
}
template <class T>
T atomicAdd(T* address, T value) {
    return emulated_atomic(address, [=](T old) { return old + value; });
}
template <class T>
T atomicMax(T* address, T value) {
    return emulated_atomic(address, [=](T old) { return old < value ? value : old; });
}
template <class T>
T atomicMin(T* address, T value) {
    return emulated_atomic(address, [=](T old) { return value < old ? value : old; });
}
template <class T>
T atomicExch(T* address, T value) {
    return emulated_atomic(address, [=](T) { return value; });
}
template <class T>
T atomicCAS(T* address, T expected, T value) {
    return emulated_atomic(address, [=](T old) { return old == expected ? value : old; });
}
