// Runs the blocks of a launch one after another, the threads of a block in turns.
//
// A thread that never waits costs a function call: threads are started one behind the other on the same stack. Only when
// one waits (barrier, warp operation) do the next ones start on another stack, and whoever gives up the turn switches
// straight to the next thread.
#include "runtime.h"
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <sys/mman.h>

extern "C" char __start_emulated_shared[] __attribute__((weak));
extern "C" char __stop_emulated_shared[] __attribute__((weak));

namespace emulated {

Thread* current;
dim3 block_index, block_size, grid_size;
char* dynamic_shared;
Settings settings;

// ThreadSanitizer knows variables by address: two threads on one stack would look like a race.
const bool SHARE_STACKS = !EMULATED_TSAN;

static const Kernel* kernel;
static void** arguments;
static std::vector<Fiber> fibers;
static std::vector<Warp> warps;
static std::vector<Fiber*> turns; // fibers by position
static uint32_t runnable[MOST_THREADS / 32]; // a bit for each position
static unsigned turn_group, turn_bit;        // where to look for the next turn
static unsigned n_threads;
static unsigned predicates, barrier_count, barrier_number; // of __syncthreads_count
static Outcome outcome;
static std::string failure;
static void* launch_tsan_fiber;
static char start_tag, end_tag, barrier_tags[2];
bool copies_started;

static std::map<std::string, Kernel>& registry() {
    static std::map<std::string, Kernel> kernels;
    return kernels;
}
Registration::Registration(const char* name, Call call, const size_t* sizes, size_t count) {
    registry()[name] = Kernel{name, call, std::vector<size_t>(sizes, sizes + count)};
}
const Kernel* find_kernel(const std::string& name) {
    auto found = registry().find(name);
    return found == registry().end() ? nullptr : &found->second;
}
const std::string& last_failure() {
    return failure;
}
bool in_kernel() {
    return current != nullptr;
}
Fiber* fibers_of_warp() {
    return &fibers[fiber()->number & ~31u];
}
Warp& warp() {
    return warps[fiber()->number / 32];
}

// ---- How a launch goes wrong

static void note(const char* what, Where where) {
    char text[512];
    dim3 b = block_index, t = current->index;
    int used = snprintf(text, sizeof text, "%s: kernel %s, block (%u, %u, %u), thread (%u, %u, %u)", what,
                        kernel->name.c_str(), b.x, b.y, b.z, t.x, t.y, t.z);
    if (where.file) snprintf(text + used, sizeof text - used, ", %s:%d", where.file, where.line);
    failure = text;
    fprintf(stderr, "stand-in CUDA driver: %s\n", text);
}

static void tsan_switch([[maybe_unused]] void* to) {
#if EMULATED_TSAN
    __tsan_switch_to_fiber(to, 1 /* which is no synchronisation */);
#endif
}

[[noreturn]] static void abandon() {
    tsan_release(&end_tag);
    tsan_switch(launch_tsan_fiber);
    switch_stack(fiber()->stack, nullptr, true);
    __builtin_unreachable();
}

void fail(const char* what, Where where) {
    note(what, where);
    outcome = Outcome::failed;
    abandon();
}

void note_fault(const char* what, const void* address) {
    char text[128];
    snprintf(text, sizeof text, "%s at %p", what, address);
    note(text, {nullptr, 0});
}

void abandon_after_fault() {
    outcome = Outcome::illegal_address;
    abandon();
}

// ---- Shared memory

// The most dynamic shared memory that a block may have, and a page that faults behind it.
const size_t DYNAMIC_BYTES = 256 * 1024;
const size_t PAGE = 4096;

// By hand: with AddressSanitizer the section has gaps that memset would stumble over.
__attribute__((no_sanitize_address)) static void fill(char* begin, char* end) {
    char* at = begin;
    for (; at + 8 <= end; at += 8) *reinterpret_cast<volatile uint64_t*>(at) = ~uint64_t(0);
    for (; at < end; at++) *reinterpret_cast<volatile char*>(at) = -1;
}

// Fills the block's shared memory with 0xff, which is a NaN in every float type.
static void spoil_shared(unsigned dynamic_bytes) {
    if (__start_emulated_shared) fill(__start_emulated_shared, __stop_emulated_shared);
    dynamic_shared = nullptr;
    if (!dynamic_bytes) return;
#if EMULATED_ASAN
    static void* last;
    free(last);
    if (posix_memalign(&last, 16, dynamic_bytes)) abort();
    dynamic_shared = static_cast<char*>(last);
    memset(dynamic_shared, 0xff, dynamic_bytes);
#else
    static char* map;
    if (!map) {
        void* got = mmap(nullptr, DYNAMIC_BYTES + PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (got == MAP_FAILED || mprotect(static_cast<char*>(got) + DYNAMIC_BYTES, PAGE, PROT_NONE)) abort();
        map = static_cast<char*>(got);
    }
    dynamic_shared = map + DYNAMIC_BYTES - (dynamic_bytes + 15) / 16 * 16;
    memset(dynamic_shared, 0xff, (dynamic_bytes + 15) / 16 * 16);
#endif
}

// ---- Turns

void wake(Fiber& sleeper) {
    sleeper.state = State::ready;
    runnable[sleeper.position / 32] |= 1u << sleeper.position % 32;
}

// Nobody can run: releases the barrier at which all wait. False when all have finished.
static bool release_barrier() {
    Fiber *waiting = nullptr, *stuck = nullptr;
    unsigned finished = 0;
    for (Fiber& f : fibers) {
        if (f.state == State::finished) finished++;
        else if (f.state == State::in_warp_operation) stuck = &f;
        else if (waiting && (f.where.line != waiting->where.line || strcmp(f.where.file, waiting->where.file))) {
            current = &f;
            fail("threads of one block wait at different barriers", f.where);
        } else waiting = &f;
    }
    if (stuck) {
        current = stuck;
        fail("a warp operation waits for lanes that never come", stuck->where);
    }
    if (!waiting) return false;
    if (finished && settings.strict) {
        current = waiting;
        fail("a barrier after some threads of the block have returned", waiting->where);
    }
    barrier_count = predicates;
    predicates = 0;
    barrier_number++;
    for (Fiber& f : fibers)
        if (f.state == State::at_barrier) wake(f);
    return true;
}

// The thread whose turn it is now; null when all have finished. Turns go round among 32 neighbours (in order of numbers: a
// warp) until none of them can run: their stacks stay in the first cache.
static Fiber* next_turn() {
    const unsigned groups = (n_threads + 31) / 32;
    do {
        for (unsigned tried = 0; tried < groups; tried++) {
            if (const uint32_t able = runnable[turn_group]) {
                const uint32_t later = turn_bit < 32 ? able & (~0u << turn_bit) : 0;
                const unsigned bit = __builtin_ctz(later ? later : able);
                runnable[turn_group] &= ~(1u << bit);
                turn_bit = bit + 1;
                return turns[turn_group * 32 + bit];
            }
            turn_group = turn_group + 1 == groups ? 0 : turn_group + 1;
            turn_bit = 0;
        }
        turn_group = 0;
    } while (release_barrier());
    return nullptr;
}

static void run_threads();

// Leaves the stack of a thread that waits (or is done, for good) for the thread whose turn it is.
static void hand_over(Stack* from, Fiber* next, bool for_good) {
    current = next;
    if (!next) {
        tsan_switch(launch_tsan_fiber);
        switch_stack(from, nullptr, for_good);
        return;
    }
    if (next->state == State::fresh) {
        next->stack = take_stack();
        prepare(next->stack, run_threads);
    }
    tsan_switch(next->tsan_fiber);
    switch_stack(from, next->stack, for_good);
}

void wait_as(State state, Where where) {
    Fiber* me = fiber();
    me->state = state;
    me->where = where;
    Fiber* next = next_turn();
    if (next != me) hand_over(me->stack, next, false);
}

// What every stack starts with: runs threads to their ends, one behind the other.
static void run_threads() {
    arrived_on_new_stack();
    for (;;) {
        Fiber* me = fiber();
        tsan_acquire(&start_tag);
        kernel->call(arguments);
        tsan_release(&end_tag);
        me->state = State::finished; // copies it never waited for are dropped
        Fiber* next = next_turn();
        if (SHARE_STACKS && next && next->state == State::fresh) {
            next->stack = me->stack;
            current = next;
            continue;
        }
        // Nobody takes it before the switch: only a fresh thread would, and that was the case above.
        if (SHARE_STACKS) give_stack(me->stack);
        hand_over(me->stack, next, true);
    }
}

int sync_block(bool predicate, Where where) {
    // Two tags in turn: a fast thread may give to the next barrier before a slow one has taken from this one.
    const unsigned tag = barrier_number % 2;
    tsan_release(&barrier_tags[tag]);
    predicates += predicate;
    wait_as(State::at_barrier, where);
    tsan_acquire(&barrier_tags[tag]);
    return barrier_count;
}

// ---- Launches

// xorshift: the same order for the same seed.
static uint64_t random_state;
static unsigned random_below(unsigned bound) {
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return random_state % bound;
}

template <class T>
static void shuffle_all(std::vector<T>& items) {
    for (unsigned left = items.size(); left > 1; left--) std::swap(items[left - 1], items[random_below(left)]);
}

static void number_turns() {
    for (unsigned position = 0; position < n_threads; position++) turns[position]->position = position;
}

static void prepare_threads(dim3 block) {
    n_threads = block.x * block.y * block.z;
    fibers.resize(n_threads);
    warps.assign((n_threads + 31) / 32, Warp{});
    turns.resize(n_threads);
    static std::vector<void*> tsan_fibers;
    for (unsigned i = 0; i < n_threads; i++) {
        Fiber& f = fibers[i];
        f.index = dim3(i % block.x, i / block.x % block.y, i / block.x / block.y);
        f.lane = i % 32;
        f.number = i;
        f.tsan_fiber = nullptr;
        f.copies.clear();
        f.copy_group = 0;
        warps[i / 32].lanes |= 1u << i % 32;
        turns[i] = &f;
#if EMULATED_TSAN
        if (i == tsan_fibers.size()) tsan_fibers.push_back(__tsan_create_fiber(0));
        f.tsan_fiber = tsan_fibers[i];
#endif
    }
    if (settings.order == Order::reverse) std::reverse(turns.begin(), turns.end());
    number_turns();
}

static void run_block() {
    if (settings.order == Order::random) {
        shuffle_all(turns);
        number_turns();
    }
    for (Fiber& f : fibers) f.state = State::fresh;
    if (copies_started)
        for (Fiber& f : fibers) f.copies.clear(), f.copy_group = 0;
    copies_started = false;
    memset(runnable, 0, sizeof runnable);
    for (unsigned i = 0; i < n_threads; i++) runnable[i / 32] |= 1u << i % 32;
    turn_group = turn_bit = predicates = barrier_number = 0;
    tsan_release(&start_tag);
    if (!SHARE_STACKS) reclaim_stacks();
    hand_over(nullptr, next_turn(), false);
    tsan_acquire(&end_tag);
}

Outcome launch(const Kernel& launched, dim3 grid, dim3 block, unsigned dynamic_bytes, void** values) {
    kernel = &launched;
    arguments = values;
    grid_size = grid;
    block_size = block;
    outcome = Outcome::done;
    random_state = 0x9e3779b97f4a7c15 * (2 * settings.seed + 1);
#if EMULATED_TSAN
    launch_tsan_fiber = __tsan_get_current_fiber();
#endif
    prepare_threads(block);
    std::vector<unsigned> blocks(grid.x * grid.y * grid.z);
    for (unsigned i = 0; i < blocks.size(); i++) blocks[i] = i;
    if (settings.order == Order::reverse) std::reverse(blocks.begin(), blocks.end());
    if (settings.order == Order::random) shuffle_all(blocks);
    for (unsigned i : blocks) {
        block_index = dim3(i % grid.x, i / grid.x % grid.y, i / grid.x / grid.y);
        spoil_shared(dynamic_bytes);
        run_block();
        if (outcome != Outcome::done) break;
    }
    current = nullptr;
    if (outcome != Outcome::done) {
        reclaim_stacks();
        for (Warp& w : warps) w.arrived = 0;
    }
    return outcome;
}

} // namespace emulated
