// Entry points for memory and copies. Device memory is memory of the process: it starts as 0xff (a NaN in every float
// type), and a page that faults lies behind each allocation; AddressSanitizer does the same to the byte.
#include "driver.h"
#include <cstdlib>
#include <map>
#include <sys/mman.h>

namespace driver {

struct Allocation {
    size_t bytes;
    Device* device;
    char* map; // with its guard page; null when malloc keeps its own
    size_t map_bytes;
};
static std::map<DevicePointer, Allocation> allocations;
static std::map<uintptr_t, size_t> pinned;
const size_t PAGE = 4096;
// More than this is not filled, or large pools would become resident.
const size_t FILLED_BYTES = size_t(64) << 20;

static Result allocate(DevicePointer* address, size_t bytes) {
    Device* device = current_device();
    if (!device) return INVALID_CONTEXT;
    if (bytes == 0) return INVALID_VALUE;
    if (device->used_bytes + options.held_bytes + bytes > options.memory_bytes) return OUT_OF_MEMORY;
    Allocation made{bytes, device, nullptr, 0};
    void* memory = nullptr;
    if (!EMULATED_ASAN && !EMULATED_TSAN && options.guard) {
        // The end lies against the guard page, so that the start is aligned to 16 only: all that kernels need.
        const size_t room = (bytes + PAGE - 1) / PAGE * PAGE;
        made.map_bytes = room + PAGE;
        void* map = mmap(nullptr, made.map_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (map == MAP_FAILED || mprotect(static_cast<char*>(map) + room, PAGE, PROT_NONE)) return OUT_OF_MEMORY;
        made.map = static_cast<char*>(map);
        memory = made.map + room - (bytes + 15) / 16 * 16;
    } else if (posix_memalign(&memory, 256, bytes)) {
        return OUT_OF_MEMORY;
    }
    if (bytes <= FILLED_BYTES) memset(memory, 0xff, bytes);
    device->used_bytes += bytes;
    *address = reinterpret_cast<DevicePointer>(memory);
    allocations[*address] = made;
    return SUCCESS;
}

static Result release(DevicePointer address) {
    auto found = allocations.find(address);
    if (found == allocations.end()) {
        complain("%llx is freed, and is no allocation", address);
        return INVALID_VALUE;
    }
    const Allocation& was = found->second;
    was.device->used_bytes -= was.bytes;
    if (was.map) munmap(was.map, was.map_bytes);
    else {
#if EMULATED_ASAN
        __asan_unpoison_memory_region(reinterpret_cast<void*>(address), was.bytes);
#endif
        free(reinterpret_cast<void*>(address));
    }
    allocations.erase(found);
    return SUCCESS;
}

// Whether the bytes lie in one allocation.
static bool inside(const char* function, DevicePointer address, size_t bytes) {
    auto next = allocations.upper_bound(address);
    if (next != allocations.begin()) {
        auto& [start, allocation] = *--next;
        if (address + bytes <= start + allocation.bytes) return true;
    }
    complain("%s: %zu bytes at %llx do not lie in one allocation", function, bytes, address);
    return false;
}

bool is_pinned(const void* address) {
    auto next = pinned.upper_bound(reinterpret_cast<uintptr_t>(address));
    if (next == pinned.begin()) return false;
    auto& [start, bytes] = *--next;
    return reinterpret_cast<uintptr_t>(address) < start + bytes;
}

static void* at(DevicePointer address) {
    return reinterpret_cast<void*>(address);
}

} // namespace driver

using namespace driver;

#define CHECK_RANGE(address, bytes) \
    if (!inside(__func__, address, bytes)) return INVALID_VALUE
#define CHECK_NO_CAPTURE \
    if (refused_in_capture(__func__)) return STREAM_CAPTURE_UNSUPPORTED

API Result cuMemAlloc_v2(DevicePointer* address, size_t bytes) {
    ENTER;
    CHECK_NO_CAPTURE;
    return allocate(address, bytes);
}

API Result cuMemFree_v2(DevicePointer address) {
    ENTER;
    CHECK_NO_CAPTURE;
    finish_all();
    return address ? release(address) : SUCCESS;
}

API Result cuMemAllocAsync(DevicePointer* address, size_t bytes, void* stream) {
    ENTER;
    if (capturing(stream)) return NOT_SUPPORTED;
    return allocate(address, bytes);
}

API Result cuMemFreeAsync(DevicePointer address, void* stream) {
    ENTER;
    if (capturing(stream)) return NOT_SUPPORTED;
    return queue(stream, [=] { return release(address); });
}

API Result cuMemGetInfo_v2(size_t* free_bytes, size_t* total_bytes) {
    ENTER;
    if (!current_device()) return INVALID_CONTEXT;
    *total_bytes = options.memory_bytes;
    *free_bytes = options.memory_bytes - options.held_bytes - current_device()->used_bytes;
    return SUCCESS;
}

API Result cuMemHostAlloc(void** address, size_t bytes, unsigned) {
    ENTER;
    if (bytes == 0) return INVALID_VALUE;
    if (posix_memalign(address, PAGE, bytes)) return OUT_OF_MEMORY;
    pinned[reinterpret_cast<uintptr_t>(*address)] = bytes;
    return SUCCESS;
}

API Result cuMemFreeHost(void* address) {
    ENTER;
    finish_all();
    if (!pinned.erase(reinterpret_cast<uintptr_t>(address))) return INVALID_VALUE;
    free(address);
    return SUCCESS;
}

// Pageable memory is copied at the call, page-locked memory is read when its turn comes.
API Result cuMemcpyHtoDAsync_v2(DevicePointer to, const void* from, size_t bytes, void* stream) {
    ENTER;
    CHECK_RANGE(to, bytes);
    if (is_pinned(from))
        return queue(stream, [=] { return memcpy(at(to), from, bytes), SUCCESS; });
    auto start = static_cast<const char*>(from);
    auto staged = std::make_shared<std::vector<char>>(start, start + bytes);
    return queue(stream, [=] { return memcpy(at(to), staged->data(), bytes), SUCCESS; });
}

API Result cuMemcpyDtoHAsync_v2(void* to, DevicePointer from, size_t bytes, void* stream) {
    ENTER;
    CHECK_RANGE(from, bytes);
    Result queued = queue(stream, [=] { return memcpy(to, at(from), bytes), SUCCESS; });
    const bool waits = !is_pinned(to) && !capturing(stream) && options.lazy < 2;
    return queued == SUCCESS && waits ? finish(static_cast<Stream*>(stream)) : queued;
}

API Result cuMemcpyDtoDAsync_v2(DevicePointer to, DevicePointer from, size_t bytes, void* stream) {
    ENTER;
    CHECK_RANGE(to, bytes);
    CHECK_RANGE(from, bytes);
    if (to < from + bytes && from < to + bytes) {
        complain("%s: source and target overlap", __func__);
        return INVALID_VALUE;
    }
    return queue(stream, [=] { return memcpy(at(to), at(from), bytes), SUCCESS; });
}

API Result cuMemcpyHtoD_v2(DevicePointer to, const void* from, size_t bytes) {
    ENTER;
    CHECK_NO_CAPTURE;
    CHECK_RANGE(to, bytes);
    Result result = finish(nullptr);
    memcpy(at(to), from, bytes);
    return result;
}

API Result cuMemcpyDtoH_v2(void* to, DevicePointer from, size_t bytes) {
    ENTER;
    CHECK_NO_CAPTURE;
    CHECK_RANGE(from, bytes);
    Result result = finish(nullptr);
    memcpy(to, at(from), bytes);
    return result;
}

API Result cuMemcpyDtoD_v2(DevicePointer to, DevicePointer from, size_t bytes) {
    ENTER;
    CHECK_NO_CAPTURE;
    CHECK_RANGE(to, bytes);
    CHECK_RANGE(from, bytes);
    Result result = finish(nullptr);
    memmove(at(to), at(from), bytes);
    return result;
}

API Result cuMemsetD8Async(DevicePointer to, unsigned char value, size_t bytes, void* stream) {
    ENTER;
    CHECK_RANGE(to, bytes);
    return queue(stream, [=] { return memset(at(to), value, bytes), SUCCESS; });
}

API Result cuMemsetD32Async(DevicePointer to, unsigned value, size_t count, void* stream) {
    ENTER;
    CHECK_RANGE(to, count * 4);
    return queue(stream, [=] { return std::fill_n(static_cast<unsigned*>(at(to)), count, value), SUCCESS; });
}

API Result cuMemsetD8_v2(DevicePointer to, unsigned char value, size_t bytes) {
    ENTER;
    CHECK_NO_CAPTURE;
    CHECK_RANGE(to, bytes);
    Result result = finish(nullptr);
    memset(at(to), value, bytes);
    return result;
}

// ---- For tests: memory that is nobody's (a free block of a pool) and must not be touched. AddressSanitizer ends the
// process at the first access; without it what is read there is NaN.

API void sayfa_cuda_poison(DevicePointer address, size_t bytes) {
    ENTER;
    finish_all();
    memset(at(address), 0xff, bytes);
#if EMULATED_ASAN
    __asan_poison_memory_region(at(address), bytes);
#endif
}

API void sayfa_cuda_unpoison([[maybe_unused]] DevicePointer address, [[maybe_unused]] size_t bytes) {
    ENTER;
#if EMULATED_ASAN
    __asan_unpoison_memory_region(at(address), bytes);
#endif
}
