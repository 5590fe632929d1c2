// Operations of a warp: the lanes meet, the last one to arrive computes for all. Copies by cp.async.
#include "runtime.h"

namespace emulated {

static bool same(Where a, Where b) {
    return a.line == b.line && (a.file == b.file || !strcmp(a.file, b.file));
}

// Waits until all lanes of the mask have come with this operation. The last one runs `compute`, which reads `value` and
// `source` of the warp and writes `result`.
template <class Compute>
static uint64_t meet(Operation operation, unsigned mask, uint64_t value, unsigned source, Where where, Compute compute) {
    Fiber& me = *fiber();
    Warp& w = warp();
    const unsigned lane = me.lane;
    if (mask & ~w.lanes) fail("a warp operation names lanes that the block does not have", where);
    if (!(mask >> lane & 1)) fail("a lane is not in its own mask", where);
    w.operation[lane] = operation;
    w.mask[lane] = mask;
    w.value[lane] = value;
    w.source[lane] = source;
    me.where = where;
    // Of all these only __syncwarp orders memory.
    void* tag = &w.tags[w.number % 2];
    if (operation == Operation::sync) tsan_release(tag);
    w.arrived |= 1u << lane;
    if ((w.arrived & mask) != mask) {
        wait_as(State::in_warp_operation, where);
    } else {
        Fiber* lanes = fibers_of_warp();
        for (unsigned rest = mask; rest; rest &= rest - 1) {
            unsigned other = __builtin_ctz(rest);
            if (w.operation[other] != operation || w.mask[other] != mask || !same(lanes[other].where, where))
                fail("lanes of one warp meet at different warp operations", where);
        }
        compute(w);
        w.arrived &= ~mask;
        w.number++;
        for (unsigned rest = mask & ~(1u << lane); rest; rest &= rest - 1) wake(lanes[__builtin_ctz(rest)]);
    }
    if (operation == Operation::sync) tsan_acquire(tag);
    return w.result[lane];
}

uint64_t shuffle(unsigned mask, uint64_t value, unsigned source_lane, Where where) {
    return meet(Operation::shuffle, mask, value, source_lane, where, [=](Warp& w) {
        for (unsigned rest = mask; rest; rest &= rest - 1) {
            unsigned lane = __builtin_ctz(rest);
            if (!(mask >> w.source[lane] & 1)) fail("a shuffle reads from a lane outside the mask", where);
            w.result[lane] = w.value[w.source[lane]];
        }
    });
}

unsigned ballot(unsigned mask, bool predicate, Where where) {
    return meet(Operation::ballot, mask, predicate, 0, where, [=](Warp& w) {
        unsigned votes = 0;
        for (unsigned lane = 0; lane < 32; lane++)
            if (mask >> lane & 1 && w.value[lane]) votes |= 1u << lane;
        for (unsigned lane = 0; lane < 32; lane++) w.result[lane] = votes;
    });
}

void sync_warp(unsigned mask, Where where) {
    meet(Operation::sync, mask, 0, 0, where, [](Warp&) {});
}

// The xor tree of device.cuh: all lanes get the bits of lane 0, since combining two values does not depend on their order.
template <class T, class Combine>
static T reduce(Operation operation, T value, Where where, Combine combine) {
    uint32_t bits;
    memcpy(&bits, &value, 4);
    bits = meet(operation, 0xffffffffu, bits, 0, where, [=](Warp& w) {
        T values[32];
        for (unsigned lane = 0; lane < 32; lane++) memcpy(&values[lane], &w.value[lane], 4);
        for (unsigned apart = 16; apart > 0; apart /= 2)
            for (unsigned lane = 0; lane < apart; lane++) values[lane] = combine(values[lane], values[lane + apart]);
        uint32_t result;
        memcpy(&result, &values[0], 4);
        for (unsigned lane = 0; lane < 32; lane++) w.result[lane] = result;
    });
    memcpy(&value, &bits, 4);
    return value;
}

float warp_sum(float value, Where where) {
    return reduce(Operation::sum, value, where, [](float a, float b) { return a + b; });
}
float warp_max(float value, Where where) {
    return reduce(Operation::max, value, where, [](float a, float b) { return fmaxf(a, b); });
}
unsigned warp_max_bits(unsigned value, Where where) {
    return reduce(Operation::max_bits, value, where, [](unsigned a, unsigned b) { return a < b ? b : a; });
}

// ---- Tensor cores. Fragments as in PTX's description of mma: see device.cuh.

namespace {
template <class T>
struct Tile {
    T* d;
    const uint32_t* a;
    const uint32_t* b;
};
} // namespace

template <class T>
static const Tile<T>& tile_of(const Warp& w, unsigned lane) {
    return *reinterpret_cast<const Tile<T>*>(w.value[lane]);
}

// d (16 x 8) += a (16 x depth) b (depth x 8) in the order of d's fragments, one product by `dot`(row, column).
template <class T, class Dot>
static void add_products(Warp& w, Dot dot) {
    for (unsigned lane = 0; lane < 32; lane++) {
        T* d = tile_of<T>(w, lane).d;
        for (unsigned i = 0; i < 4; i++) d[i] = T(d[i] + dot(lane / 4 + i / 2 * 8, lane % 4 * 2 + i % 2));
    }
}

// The loops are of fixed lengths over 16-bit numbers, which g++ turns into a few vector instructions.
template <int K>
static void multiply_s8(Warp& w) {
    int16_t left[16][K], right[8][K];
    auto unpack = [](int16_t* to, uint32_t four) {
        for (int i = 0; i < 4; i++) to[i] = int8_t(four >> (8 * i));
    };
    for (unsigned lane = 0; lane < 32; lane++) {
        const Tile<int>& tile = tile_of<int>(w, lane);
        const unsigned row = lane / 4, at = lane % 4 * 4;
        for (int half = 0; half < K / 16; half++) {
            unpack(&left[row][16 * half + at], tile.a[2 * half]);
            unpack(&left[row + 8][16 * half + at], tile.a[2 * half + 1]);
            unpack(&right[row][16 * half + at], tile.b[half]);
        }
    }
    add_products<int>(w, [&](unsigned row, unsigned column) {
        int sum = 0;
        for (int i = 0; i < K; i++) sum += left[row][i] * right[column][i];
        return sum;
    });
}

void mma_s8(int (&d)[4], const uint32_t* a, const uint32_t* b, int k, Where where) {
    Tile<int> mine{d, a, b};
    meet(Operation::mma, 0xffffffffu, reinterpret_cast<uint64_t>(&mine), unsigned(k), where,
         [=](Warp& w) { k == 16 ? multiply_s8<16>(w) : multiply_s8<32>(w); });
}

// ---- cp.async: a copy is held back until somebody waits for it, so that a missing wait reads what was there before.

// The write may happen at any time from the start of a copy to the end of the wait.
static void tsan_write([[maybe_unused]] const Copy& copy) {
#if EMULATED_TSAN
    __tsan_write_range(copy.shared, 16);
#endif
}

void cp_async16(void* shared, const void* global, Where where) {
    if ((reinterpret_cast<uintptr_t>(shared) | reinterpret_cast<uintptr_t>(global)) % 16)
        fail("cp.async of 16 bytes from or to an address that is no multiple of 16", where);
    copies_started = true;
    fiber()->copies.push_back({shared, global, fiber()->copy_group});
    tsan_write(fiber()->copies.back());
}

void cp_async_commit() {
    fiber()->copy_group++;
    copies_started = true;
}

// wait_group waits for committed groups only.
void cp_async_wait(unsigned newest) {
    std::vector<Copy>& copies = fiber()->copies;
    size_t kept = 0;
    for (const Copy& copy : copies) {
        if (copy.group + newest < fiber()->copy_group) {
            memcpy(copy.shared, copy.global, 16);
            tsan_write(copy);
        } else {
            copies[kept++] = copy;
        }
    }
    copies.resize(kept);
}

} // namespace emulated
