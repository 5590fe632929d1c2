// Inside the stand-in driver: what its entry points share. One lock is held by whoever is inside.
#pragma once
#include "runtime.h"
#include <functional>
#include <memory>
#include <mutex>

#define API extern "C" __attribute__((visibility("default")))

namespace driver {

using DevicePointer = unsigned long long;

// CUresult, as far as it is used.
enum Result : int {
    SUCCESS = 0,
    INVALID_VALUE = 1,
    OUT_OF_MEMORY = 2,
    NOT_INITIALIZED = 3,
    NO_DEVICE = 100,
    INVALID_DEVICE = 101,
    INVALID_IMAGE = 200,
    INVALID_CONTEXT = 201,
    NO_BINARY_FOR_GPU = 209,
    UNSUPPORTED_PTX_VERSION = 222,
    NOT_FOUND = 500,
    NOT_READY = 600,
    ILLEGAL_ADDRESS = 700,
    LAUNCH_FAILED = 719,
    NOT_SUPPORTED = 801,
    STREAM_CAPTURE_UNSUPPORTED = 900,
    STREAM_CAPTURE_INVALIDATED = 901,
    ILLEGAL_STATE = 401,
};

// The environment's settings; README.md lists them.
struct Options {
    int devices, compute_capability, multiprocessors, driver_version, init_error;
    int lazy; // 0: an operation runs when it is queued; 1: when somebody waits; 2: not even for copies to pageable memory
    bool guard, trace;
    int ptx_major, ptx_minor; // the newest PTX that is understood
    size_t memory_bytes, held_bytes;
};
extern Options options;

// Holds the lock, and tells of the call when asked to.
struct Entry {
    explicit Entry(const char* function);
    std::lock_guard<std::recursive_mutex> lock;
};
#define ENTER driver::Entry entry(__func__)

// Says on stderr what is wrong with a call that the hardware's driver would refuse with a bare code.
__attribute__((format(printf, 1, 2))) void complain(const char* format, ...);

struct Device {
    size_t used_bytes = 0;
};
// Of the calling thread's context; null when it has none.
Device* current_device();

using Operation = std::function<Result()>;

struct Graph {
    std::vector<Operation> operations;
};
struct Stream;

// Everything queued runs, in order. The first error stays, as on the hardware, until the context is gone.
Result finish(Stream* stream);
Result finish_all();
Result queue(void* stream, Operation operation);
bool capturing(void* stream);
// Work that no stream knows of is refused while this thread captures one: it would not be a part of the graph.
bool refused_in_capture(const char* function);
Result first_error();
void forget_errors();

bool is_pinned(const void* address);

void catch_faults();
// Faults are reported on a stack of their own, which each thread needs.
void prepare_thread_for_faults();

} // namespace driver
