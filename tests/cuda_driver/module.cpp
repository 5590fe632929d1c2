// Entry points for modules and launches. The PTX is not run, but it is the authority on what there is: names, parameter
// sizes, shared memory and launch bounds come from its text, and must agree with the kernels that were compiled in.
#include "driver.h"
#include <map>

namespace driver {

// Without the attribute a block may have this much shared memory.
const unsigned SHARED_BYTES = 48 * 1024;
const unsigned SHARED_BYTES_ON_REQUEST = 99 * 1024;

struct Function {
    const emulated::Kernel* kernel = nullptr;
    std::string name;
    std::vector<size_t> parameter_bytes;
    unsigned static_bytes = 0;
    unsigned dynamic_limit = SHARED_BYTES;
    unsigned most_threads = 1024;
};
struct Module {
    std::map<std::string, Function> functions;
};

static size_t launches;

// The number behind `word`, or `otherwise`.
static size_t number_after(const std::string& text, const std::string& word, size_t from, size_t otherwise) {
    size_t at = text.find(word, from);
    return at == std::string::npos ? otherwise : strtoull(text.c_str() + at + word.size(), nullptr, 10);
}

// .param .u64 NAME   or   .param .align 8 .b8 NAME[72]
static std::vector<size_t> parameters(const std::string& list) {
    std::vector<size_t> bytes;
    for (size_t at = list.find(".param"); at != std::string::npos; at = list.find(".param", at + 1)) {
        const std::string declared = list.substr(at, list.find(',', at) - at);
        size_t array = declared.find('[');
        if (array != std::string::npos) {
            bytes.push_back(strtoull(declared.c_str() + array + 1, nullptr, 10));
        } else {
            const char* type = declared.c_str() + declared.find('.', 6);
            bytes.push_back(strtoull(type + 2, nullptr, 10) / 8);
        }
    }
    return bytes;
}

// Bytes of the shared variables of the module, by name: .shared .align 4 .b8 NAME[32];
static std::map<std::string, unsigned> shared_variables(const std::string& ptx) {
    std::map<std::string, unsigned> found;
    for (size_t at = ptx.find(".shared .align"); at != std::string::npos; at = ptx.find(".shared .align", at + 1)) {
        const size_t bracket = ptx.find('[', at), end = ptx.find(';', at);
        if (bracket == std::string::npos || bracket > end) continue;
        const size_t name = ptx.rfind(' ', bracket) + 1;
        found[ptx.substr(name, bracket - name)] = strtoull(ptx.c_str() + bracket + 1, nullptr, 10);
    }
    return found;
}

// False when the kernel was compiled from another text than the PTX.
static bool read_function(const std::string& ptx, size_t at, const std::map<std::string, unsigned>& shared, Module& module) {
    const size_t open = ptx.find('(', at), close = ptx.find(')', open), body = ptx.find('{', close);
    const size_t end = ptx.find("\n}", body);
    Function function;
    function.name = ptx.substr(at, open - at);
    function.parameter_bytes = parameters(ptx.substr(open, close - open));
    const std::string bounds = ptx.substr(close, body - close), code = ptx.substr(body, end - body);
    function.most_threads = number_after(bounds, ".maxntid ", 0, 1024);
    for (auto& [name, bytes] : shared)
        if (code.find(name) != std::string::npos) function.static_bytes += bytes;
    function.kernel = emulated::find_kernel(function.name);
    if (function.kernel && function.kernel->argument_bytes != function.parameter_bytes) {
        complain("%s: the PTX and the source differ in its parameters; is the PTX stale?", function.name.c_str());
        return false;
    }
    module.functions[function.name] = function;
    return true;
}

static Result load(void** made, const std::string& ptx) {
    int major = 0, minor = 0;
    const size_t version = ptx.find(".version ");
    if (version == std::string::npos) return INVALID_IMAGE;
    sscanf(ptx.c_str() + version, ".version %d.%d", &major, &minor);
    if (std::pair(major, minor) > std::pair(options.ptx_major, options.ptx_minor)) return UNSUPPORTED_PTX_VERSION;
    const size_t target = number_after(ptx, ".target sm_", 0, 0);
    if (target == 0) return INVALID_IMAGE;
    if (target > size_t(options.compute_capability)) return NO_BINARY_FOR_GPU;
    auto module = std::make_unique<Module>();
    const auto shared = shared_variables(ptx);
    const std::string entry = ".entry ";
    for (size_t at = ptx.find(entry); at != std::string::npos; at = ptx.find(entry, at + 1))
        if (!read_function(ptx, at + entry.size(), shared, *module)) return INVALID_IMAGE;
    *made = module.release();
    return SUCCESS;
}

// What is wrong with a launch; null when nothing is.
static const char* mistake(const Function& f, const unsigned (&grid)[3], const unsigned (&block)[3], unsigned dynamic_bytes) {
    const unsigned long long threads = 1ull * block[0] * block[1] * block[2];
    if (!grid[0] || !grid[1] || !grid[2] || !threads) return "nothing to launch";
    if (grid[0] > 2147483647u || grid[1] > 65535 || grid[2] > 65535) return "the grid is too large";
    if (threads > 1024 || block[2] > 64) return "the block is too large";
    if (threads > f.most_threads) return "more threads than the kernel's launch bounds";
    if (dynamic_bytes > f.dynamic_limit) return "more dynamic shared memory than was asked for";
    if (f.static_bytes + dynamic_bytes > (f.dynamic_limit > SHARED_BYTES ? SHARED_BYTES_ON_REQUEST : SHARED_BYTES))
        return "more shared memory than there is";
    return nullptr;
}

} // namespace driver

using namespace driver;

API Result cuModuleLoadData(void** module, const void* image) {
    ENTER;
    if (!current_device()) return INVALID_CONTEXT;
    return load(module, static_cast<const char*>(image));
}

API Result cuModuleLoadDataEx(void** module, const void* image, unsigned, int*, void**) {
    return cuModuleLoadData(module, image);
}

API Result cuModuleUnload(void* module) {
    ENTER;
    Result result = finish_all();
    delete static_cast<Module*>(module);
    return result;
}

API Result cuModuleGetFunction(void** function, void* module, const char* name) {
    ENTER;
    auto& functions = static_cast<Module*>(module)->functions;
    auto found = functions.find(name);
    if (found == functions.end()) return NOT_FOUND;
    if (!found->second.kernel) {
        complain("kernel %s is in the PTX but was not compiled into this driver", name);
        return NOT_FOUND;
    }
    *function = &found->second;
    return SUCCESS;
}

API Result cuFuncSetAttribute(void* function, int which, int value) {
    ENTER;
    const int MAX_DYNAMIC_SHARED_BYTES = 8;
    if (which != MAX_DYNAMIC_SHARED_BYTES) return SUCCESS;
    auto f = static_cast<Function*>(function);
    if (value < 0 || f->static_bytes + value > SHARED_BYTES_ON_REQUEST) return INVALID_VALUE;
    f->dynamic_limit = value;
    return SUCCESS;
}

API Result cuFuncGetAttribute(int* value, int which, void* function) {
    ENTER;
    auto f = static_cast<Function*>(function);
    *value = which == 0 ? f->most_threads : which == 1 ? f->static_bytes : which == 8 ? f->dynamic_limit : 0;
    return SUCCESS;
}

API Result cuFuncSetCacheConfig(void*, int) {
    ENTER;
    return SUCCESS;
}

API Result cuOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, void*, int, size_t) {
    ENTER;
    *blocks = 2;
    return SUCCESS;
}

API Result cuLaunchKernel(void* handle, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x, unsigned block_y,
                          unsigned block_z, unsigned dynamic_bytes, void* stream, void** parameters, void**) {
    ENTER;
    auto f = static_cast<Function*>(handle);
    if (const char* what = mistake(*f, {grid_x, grid_y, grid_z}, {block_x, block_y, block_z}, dynamic_bytes)) {
        complain("launch of %s: %s: grid (%u, %u, %u), block (%u, %u, %u), %u bytes of dynamic and %u of static shared memory",
                 f->name.c_str(), what, grid_x, grid_y, grid_z, block_x, block_y, block_z, dynamic_bytes, f->static_bytes);
        return INVALID_VALUE;
    }
    // Arguments are taken now; aligned as the largest type wants it.
    auto values = std::make_shared<std::vector<std::vector<std::max_align_t>>>();
    for (size_t i = 0; i < f->parameter_bytes.size(); i++) {
        const size_t bytes = f->parameter_bytes[i];
        values->emplace_back((bytes + sizeof(std::max_align_t) - 1) / sizeof(std::max_align_t));
        memcpy(values->back().data(), parameters[i], bytes);
    }
    const emulated::Kernel* kernel = f->kernel;
    return queue(stream, [=] {
        std::vector<void*> arguments;
        for (auto& value : *values) arguments.push_back(value.data());
        launches++;
        prepare_thread_for_faults();
        dim3 grid(grid_x, grid_y, grid_z), block(block_x, block_y, block_z);
        switch (emulated::launch(*kernel, grid, block, dynamic_bytes, arguments.data())) {
        case emulated::Outcome::done: return SUCCESS;
        case emulated::Outcome::illegal_address: return ILLEGAL_ADDRESS;
        default: return LAUNCH_FAILED;
        }
    });
}

// For tests: kernels that have run so far.
API size_t sayfa_cuda_launches() {
    ENTER;
    return launches;
}
