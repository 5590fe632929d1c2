// Stacks for CUDA threads, and the switch between two of them.
#include "runtime.h"
#include <cstdio>
#include <cstdlib>
#include <sys/mman.h>

// Saves the registers that a function must keep, and the stack pointer; then the same the other way round.
asm(R"(
.text
.type emulated_switch, @function
emulated_switch:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    ret
.size emulated_switch, . - emulated_switch
)");
extern "C" void emulated_switch(void** save, void* to);

namespace emulated {

// Kernels keep little on the stack; the page below faults when one overflows.
const size_t STACK_BYTES = 64 * 1024;
const size_t PAGE = 4096;

// In an array and lists of their own: the containers' allocations would look like races to ThreadSanitizer.
static Stack stacks[MOST_THREADS];
static unsigned made;
static Stack* free_stacks;
static Stack launch_stack; // of the CPU thread that launches: its own, only the stack pointer is kept
static bool left_launch;

static void make_stack() {
    void* map = made == MOST_THREADS ? MAP_FAILED
                                     : mmap(nullptr, STACK_BYTES + PAGE, PROT_READ | PROT_WRITE,
                                            MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (map == MAP_FAILED || mprotect(map, PAGE, PROT_NONE)) {
        perror("stand-in CUDA driver: no memory for a stack");
        abort();
    }
    stacks[made].bottom = static_cast<char*>(map) + PAGE;
    give_stack(&stacks[made++]);
}

Stack* take_stack() {
    if (!free_stacks) make_stack();
    Stack* stack = free_stacks;
    free_stacks = stack->next_free;
    return stack;
}

void give_stack(Stack* stack) {
    stack->next_free = free_stacks;
    free_stacks = stack;
}

void prepare(Stack* stack, void (*entry)()) {
#if EMULATED_ASAN
    // Who left the stack for good did not return from its functions, whose variables are still fenced.
    __asan_unpoison_memory_region(stack->bottom, STACK_BYTES);
#endif
    // Tops at different offsets, or the stacks of a block would compete for the same lines of the cache.
    size_t spread = reinterpret_cast<uintptr_t>(stack->bottom) / (STACK_BYTES + PAGE) * 37 % 64 * 64;
    void** top = reinterpret_cast<void**>(stack->bottom + STACK_BYTES - spread);
    *--top = nullptr; // entry never returns; keeps the alignment of a call
    *--top = reinterpret_cast<void*>(entry);
    for (int saved = 0; saved < 6; saved++) *--top = nullptr;
    stack->resume_at = top;
    stack->asan_fake = nullptr;
}

#if EMULATED_ASAN
static const void* launch_bottom;
static size_t launch_bytes;

static void leave(Stack* from, Stack* to, bool for_good) {
    const void* bottom = to ? to->bottom : launch_bottom;
    void** fake = for_good ? nullptr : &(from ? from : &launch_stack)->asan_fake;
    __sanitizer_start_switch_fiber(fake, bottom, to ? STACK_BYTES : launch_bytes);
}
static void arrive(Stack* on) {
    const void* bottom;
    size_t bytes;
    __sanitizer_finish_switch_fiber((on ? on : &launch_stack)->asan_fake, &bottom, &bytes);
}
void arrived_on_new_stack() {
    const void* bottom;
    size_t bytes;
    __sanitizer_finish_switch_fiber(nullptr, &bottom, &bytes);
    if (left_launch) launch_bottom = bottom, launch_bytes = bytes;
    left_launch = false;
}
#else
static void leave(Stack*, Stack*, bool) {}
static void arrive(Stack*) {}
void arrived_on_new_stack() {
    left_launch = false;
}
#endif

void reclaim_stacks() {
    free_stacks = nullptr;
    for (unsigned i = 0; i < made; i++) give_stack(&stacks[i]);
}

void switch_stack(Stack* from, Stack* to, bool for_good) {
    left_launch = !from;
    leave(from, to, for_good);
    emulated_switch(&(from ? from : &launch_stack)->resume_at, (to ? to : &launch_stack)->resume_at);
    arrive(from);
}

} // namespace emulated
