// A kernel that touches memory that is not there ends its launch, as on the hardware, instead of the process.
#include "driver.h"
#include <csignal>
#include <sys/mman.h>
#include <ucontext.h>

namespace driver {

static struct sigaction previous[NSIG];

static void on_fault(int signal, siginfo_t* info, void* context) {
    if (!emulated::in_kernel()) {
        // Not ours: whoever handled it before does so again, at the same instruction.
        sigaction(signal, &previous[signal], nullptr);
        return;
    }
    emulated::note_fault(signal == SIGFPE ? "division of integers by zero" : "illegal access", info->si_addr);
    // Goes on in a function that never returns, below everything that is on the kernel's stack.
    greg_t* registers = static_cast<ucontext_t*>(context)->uc_mcontext.gregs;
    const greg_t RED_ZONE = 128;
    registers[REG_RSP] = ((registers[REG_RSP] - RED_ZONE) & ~greg_t(15)) - 8;
    registers[REG_RIP] = reinterpret_cast<greg_t>(emulated::abandon_after_fault);
}

void catch_faults() {
    if (EMULATED_ASAN || EMULATED_TSAN) return; // they have handlers of their own
    struct sigaction action = {};
    action.sa_sigaction = on_fault;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK;
    for (int signal : {SIGSEGV, SIGBUS, SIGFPE}) sigaction(signal, &action, &previous[signal]);
}

void prepare_thread_for_faults() {
    if (EMULATED_ASAN || EMULATED_TSAN) return;
    // At the end of a kernel's stack there is no room left. Threads of Rust have such a stack already.
    stack_t stack = {};
    sigaltstack(nullptr, &stack);
    if (!(stack.ss_flags & SS_DISABLE)) return;
    stack.ss_flags = 0;
    stack.ss_size = 64 * 1024;
    stack.ss_sp = mmap(nullptr, stack.ss_size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (stack.ss_sp != MAP_FAILED) sigaltstack(&stack, nullptr);
}

} // namespace driver
