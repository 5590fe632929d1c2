// Inside the emulation: CUDA threads as fibers, how a block of them runs, and how a launch ends. Everything here belongs
// to one launch at a time; the driver holds its lock.
#pragma once
#include "emulated.h"
#include <string>
#include <tuple>
#include <vector>

#if defined(__SANITIZE_THREAD__) || defined(SAYFA_EMULATED_TSAN)
#define EMULATED_TSAN 1
extern "C" {
void* __tsan_get_current_fiber();
void* __tsan_create_fiber(unsigned flags);
void __tsan_switch_to_fiber(void* fiber, unsigned flags);
void __tsan_acquire(void* address);
void __tsan_release(void* address);
void __tsan_write_range(void* address, unsigned long bytes);
}
#else
#define EMULATED_TSAN 0
#endif

#if defined(__SANITIZE_ADDRESS__)
#define EMULATED_ASAN 1
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#else
#define EMULATED_ASAN 0
#endif

namespace emulated {

inline void tsan_acquire([[maybe_unused]] void* tag) {
#if EMULATED_TSAN
    __tsan_acquire(tag);
#endif
}
inline void tsan_release([[maybe_unused]] void* tag) {
#if EMULATED_TSAN
    __tsan_release(tag);
#endif
}

const unsigned MOST_THREADS = 1024; // of a block

enum class Order { forward, reverse, random };

struct Settings {
    Order order = Order::forward; // of threads in a block and of blocks in a grid
    uint64_t seed = 1;
    bool strict = true; // a barrier after some threads have returned is an error
};
extern Settings settings;

struct Kernel {
    std::string name;
    Call call;
    std::vector<size_t> argument_bytes;
};
const Kernel* find_kernel(const std::string& name);

enum class Outcome { done, failed, illegal_address };

Outcome launch(const Kernel& kernel, dim3 grid, dim3 block, unsigned dynamic_bytes, void** arguments);

// Launches a kernel by its function, for harnesses without a driver: run(add_norm, grid, block, 0, x, y, ...).
template <class... Arguments>
Outcome run(void (*kernel)(Arguments...), dim3 grid, dim3 block, unsigned dynamic_bytes,
            std::common_type_t<Arguments>... values) {
    static void (*called)(Arguments...);
    static std::tuple<Arguments...> given;
    called = kernel;
    given = {values...};
    Kernel launched{"of a harness", [](void**) { std::apply(called, given); }, {}};
    return launch(launched, grid, block, dynamic_bytes, nullptr);
}

// The sentence that the last launch failed with.
const std::string& last_failure();

// ---- fibers.cpp: stacks and the switch between them

struct Stack {
    void* resume_at; // stack pointer of who waits on this stack
    char* bottom;
    void* asan_fake;
    Stack* next_free;
};

Stack* take_stack();
void give_stack(Stack* stack);
// Makes the stack start with `entry` when it is switched to.
void prepare(Stack* stack, void (*entry)());
// Leaves `from` (the stack of the launch when null) for `to` (the same). `for_good` when nobody comes back to `from`.
void switch_stack(Stack* from, Stack* to, bool for_good);
// First thing on a stack that was prepared.
void arrived_on_new_stack();
// All stacks are free again, also those that a launch left in the middle of a kernel.
void reclaim_stacks();

// ---- block.cpp: a block of threads

enum class State : uint8_t { fresh, ready, at_barrier, in_warp_operation, finished };

struct Copy {
    void* shared;
    const void* global;
    unsigned group;
};

// What a switch touches comes first, so that it is one line of the cache.
struct alignas(64) Fiber : Thread {
    unsigned number;   // in the block
    unsigned position; // in the order in which threads take turns
    State state;
    Stack* stack;
    Where where; // of the barrier or warp operation it waits in
    void* tsan_fiber;
    unsigned copy_group;
    std::vector<Copy> copies; // started by cp.async and not waited for
};

enum class Operation : uint8_t { shuffle, ballot, sync, sum, max, max_bits, mma };

struct Warp {
    unsigned lanes;   // that exist
    unsigned arrived; // at a warp operation
    unsigned number;  // of operations behind it
    Operation operation[32];
    unsigned mask[32];
    uint64_t value[32];
    uint64_t result[32];
    unsigned source[32];
    char tags[2];
};

inline Fiber* fiber() {
    return static_cast<Fiber*>(current);
}
Fiber* fibers_of_warp();
Warp& warp();
extern bool copies_started; // by any thread of the block
// Gives the turn to other threads until somebody calls wake.
void wait_as(State state, Where where);
void wake(Fiber& sleeper);
// Ends the launch with a sentence about the current thread.
[[noreturn]] void fail(const char* what, Where where);
// Called instead of the instruction after a memory fault.
[[noreturn]] void abandon_after_fault();
bool in_kernel();
void note_fault(const char* what, const void* address);

} // namespace emulated
