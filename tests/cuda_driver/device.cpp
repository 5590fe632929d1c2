// Entry points for the driver itself, devices, contexts and errors.
#include "driver.h"
#include <cstdarg>
#include <cstdio>
#include <cstdlib>

namespace driver {

Options options;
static std::recursive_mutex mutex;
static bool initialized;
static const int MOST_DEVICES = 8;
static Device devices[MOST_DEVICES];
static int retained[MOST_DEVICES];
static thread_local Device* context;

Device* current_device() {
    return context;
}

Entry::Entry(const char* function) : lock(mutex) {
    if (options.trace) fprintf(stderr, "stand-in CUDA driver: %s\n", function);
}

void complain(const char* format, ...) {
    va_list arguments;
    va_start(arguments, format);
    fprintf(stderr, "stand-in CUDA driver: ");
    vfprintf(stderr, format, arguments);
    fprintf(stderr, "\n");
    va_end(arguments);
}

static const char* text_option(const char* name, const char* otherwise) {
    const char* value = getenv((std::string("SAYFA_CUDA_") + name).c_str());
    return value ? value : otherwise;
}

static long long number_option(const char* name, long long otherwise) {
    const char* text = text_option(name, nullptr);
    return text ? atoll(text) : otherwise;
}

static emulated::Order order_named(const std::string& name) {
    if (name == "reverse") return emulated::Order::reverse;
    if (name == "random") return emulated::Order::random;
    if (name != "forward") complain("SAYFA_CUDA_ORDER=%s is not forward, reverse or random", name.c_str());
    return emulated::Order::forward;
}

static void read_options() {
    options.devices = std::min<int>(number_option("DEVICES", 1), MOST_DEVICES);
    options.compute_capability = number_option("COMPUTE_CAPABILITY", 86);
    options.multiprocessors = number_option("MULTIPROCESSORS", 4);
    options.driver_version = number_option("DRIVER_VERSION", 12000);
    options.init_error = number_option("INIT_ERROR", 0);
    options.lazy = number_option("LAZY", 2);
    options.guard = number_option("GUARD", 1);
    options.trace = number_option("TRACE", 0);
    options.memory_bytes = size_t(number_option("MEMORY_MIB", 2048)) << 20;
    options.held_bytes = size_t(number_option("HELD_MIB", 0)) << 20;
    sscanf(text_option("PTX_VERSION", "8.0"), "%d.%d", &options.ptx_major, &options.ptx_minor);
    emulated::settings.order = order_named(text_option("ORDER", "forward"));
    emulated::settings.seed = number_option("SEED", 1);
    emulated::settings.strict = number_option("STRICT", 1);
}

// What an attribute is on a part like a small sm_86.
static int attribute(int which) {
    switch (which) {
    case 1: return 1024;                                // threads a block
    case 2: case 3: return 1024;                        // its x and y
    case 4: return 64;                                  // its z
    case 5: return 2147483647;                          // the grid's x
    case 6: case 7: return 65535;                       // its y and z
    case 8: return 48 * 1024;                           // shared memory a block
    case 10: return 32;                                 // threads a warp
    case 12: return 65536;                              // registers a block
    case 13: return 1500000;                            // clock, kHz
    case 16: return options.multiprocessors;
    case 31: case 41: return 1;                         // concurrent kernels, one address space
    case 36: return 1000000;                            // clock of the memory, kHz
    case 37: return 256;                                // its width in bits
    case 38: return 6 << 20;                            // second cache
    case 39: return 1536;                               // threads a multiprocessor
    case 75: return options.compute_capability / 10;
    case 76: return options.compute_capability % 10;
    case 81: return 100 * 1024;                         // shared memory a multiprocessor
    case 97: return 99 * 1024;                          // shared memory a block that asks for it
    case 115: return 1;                                 // memory pools
    default: return 0;
    }
}

struct Name {
    int code;
    const char *name, *text;
};
static const Name NAMES[] = {
    {SUCCESS, "CUDA_SUCCESS", "no error"},
    {INVALID_VALUE, "CUDA_ERROR_INVALID_VALUE", "invalid argument"},
    {OUT_OF_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory"},
    {NOT_INITIALIZED, "CUDA_ERROR_NOT_INITIALIZED", "initialization error"},
    {NO_DEVICE, "CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected"},
    {INVALID_DEVICE, "CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal"},
    {INVALID_IMAGE, "CUDA_ERROR_INVALID_IMAGE", "device kernel image is invalid"},
    {INVALID_CONTEXT, "CUDA_ERROR_INVALID_CONTEXT", "invalid device context"},
    {NO_BINARY_FOR_GPU, "CUDA_ERROR_NO_BINARY_FOR_GPU", "no kernel image is available for execution on the device"},
    {UNSUPPORTED_PTX_VERSION, "CUDA_ERROR_UNSUPPORTED_PTX_VERSION",
     "the provided PTX was compiled with an unsupported toolchain."},
    {ILLEGAL_STATE, "CUDA_ERROR_ILLEGAL_STATE", "the operation cannot be performed in the present state"},
    {NOT_FOUND, "CUDA_ERROR_NOT_FOUND", "named symbol not found"},
    {NOT_READY, "CUDA_ERROR_NOT_READY", "device not ready"},
    {ILLEGAL_ADDRESS, "CUDA_ERROR_ILLEGAL_ADDRESS", "an illegal memory access was encountered"},
    {LAUNCH_FAILED, "CUDA_ERROR_LAUNCH_FAILED", "unspecified launch failure"},
    {803, "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH", "system has unsupported display driver / cuda driver combination"},
    {NOT_SUPPORTED, "CUDA_ERROR_NOT_SUPPORTED", "operation not supported"},
    {STREAM_CAPTURE_UNSUPPORTED, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED",
     "operation not permitted when stream is capturing"},
    {STREAM_CAPTURE_INVALIDATED, "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED",
     "operation failed due to a previous error during capture"},
};
static const Name* named(int code) {
    for (const Name& name : NAMES)
        if (name.code == code) return &name;
    return nullptr;
}

} // namespace driver

using namespace driver;

API Result cuInit(unsigned) {
    ENTER;
    if (initialized) return SUCCESS;
    read_options();
    if (options.init_error) return Result(options.init_error);
    if (options.devices == 0) return NO_DEVICE;
    if (options.guard) catch_faults();
    initialized = true;
    return SUCCESS;
}

API Result cuDriverGetVersion(int* version) {
    ENTER;
    if (!initialized) read_options();
    *version = options.driver_version;
    return SUCCESS;
}

API Result cuDeviceGetCount(int* count) {
    ENTER;
    if (!initialized) return NOT_INITIALIZED;
    *count = options.devices;
    return SUCCESS;
}

API Result cuDeviceGet(int* device, int ordinal) {
    ENTER;
    if (!initialized) return NOT_INITIALIZED;
    if (ordinal < 0 || ordinal >= options.devices) return INVALID_DEVICE;
    *device = ordinal;
    return SUCCESS;
}

API Result cuDeviceGetName(char* name, int bytes, int device) {
    ENTER;
    snprintf(name, bytes, "Stand-in GPU %d", device);
    return SUCCESS;
}

API Result cuDeviceGetUuid(char* uuid, int device) {
    ENTER;
    memset(uuid, device + 1, 16);
    return SUCCESS;
}

API Result cuDeviceGetUuid_v2(char* uuid, int device) {
    return cuDeviceGetUuid(uuid, device);
}

API Result cuDeviceTotalMem_v2(size_t* bytes, int) {
    ENTER;
    *bytes = options.memory_bytes;
    return SUCCESS;
}

API Result cuDeviceGetAttribute(int* value, int which, int device) {
    ENTER;
    if (device < 0 || device >= options.devices) return INVALID_DEVICE;
    *value = attribute(which);
    return SUCCESS;
}

API Result cuDevicePrimaryCtxRetain(void** made, int device) {
    ENTER;
    if (device < 0 || device >= options.devices) return INVALID_DEVICE;
    retained[device]++;
    *made = &devices[device];
    return SUCCESS;
}

API Result cuDevicePrimaryCtxRelease_v2(int device) {
    ENTER;
    Result result = finish_all();
    if (--retained[device] == 0) forget_errors();
    return result;
}

API Result cuCtxSetCurrent(void* wanted) {
    ENTER;
    context = static_cast<Device*>(wanted);
    return SUCCESS;
}

API Result cuCtxGetCurrent(void** found) {
    ENTER;
    *found = context;
    return SUCCESS;
}

API Result cuCtxGetDevice(int* device) {
    ENTER;
    if (!context) return INVALID_CONTEXT;
    *device = int(context - devices);
    return SUCCESS;
}

API Result cuCtxSetFlags(unsigned) {
    ENTER;
    return SUCCESS;
}

API Result cuCtxSynchronize() {
    ENTER;
    if (refused_in_capture(__func__)) return STREAM_CAPTURE_UNSUPPORTED;
    return finish_all();
}

API Result cuGetErrorName(int code, const char** name) {
    const Name* found = named(code);
    *name = found ? found->name : nullptr;
    return found ? SUCCESS : INVALID_VALUE;
}

// For what a kernel did wrong, the sentence that says which and where.
API Result cuGetErrorString(int code, const char** text) {
    ENTER;
    const bool of_kernel = code == LAUNCH_FAILED || code == ILLEGAL_ADDRESS;
    const Name* found = named(code);
    *text = of_kernel && !emulated::last_failure().empty() ? emulated::last_failure().c_str()
            : found                                        ? found->text
                                                           : nullptr;
    return found ? SUCCESS : INVALID_VALUE;
}

API void sayfa_cuda_order(int order, unsigned long long seed) {
    ENTER;
    emulated::settings.order = emulated::Order(order);
    emulated::settings.seed = seed;
}
