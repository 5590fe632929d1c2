// host KERNEL [unsynchronised|poisoned]: launches one kernel of kernels.cu through the driver API and prints what came of
// it: `right`, `wrong results`, or the driver's error. `unsynchronised` reads the results without waiting for them,
// `poisoned` marks the input as nobody's.
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

extern "C" {
int cuInit(unsigned);
int cuDevicePrimaryCtxRetain(void**, int);
int cuCtxSetCurrent(void*);
int cuMemAlloc_v2(unsigned long long*, size_t);
int cuMemcpyHtoD_v2(unsigned long long, const void*, size_t);
int cuMemcpyDtoHAsync_v2(void*, unsigned long long, size_t, void*);
int cuStreamCreate(void**, unsigned);
int cuStreamSynchronize(void*);
int cuModuleLoadData(void**, const void*);
int cuModuleGetFunction(void**, void*, const char*);
int cuLaunchKernel(void*, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void*, void**, void**);
int cuGetErrorString(int, const char**);
void sayfa_cuda_poison(unsigned long long, size_t);
}

static void check(int result) {
    if (!result) return;
    const char* text = nullptr;
    cuGetErrorString(result, &text);
    printf("error %d: %s\n", result, text ? text : "?");
    exit(0);
}

int main(int count, char** words) {
    const std::string name = words[1], how = count > 2 ? words[2] : "";
    // The kernels copy four elements a thread in one place, and one in all others.
    const bool sums = name.find("sum") != std::string::npos, copies = name.find("copy") != std::string::npos;
    const unsigned blocks = sums ? 4 : 1;
    int n = copies ? 512 : sums ? 512 : 128;
    const int n_out = sums ? 4 : 128;
    const float expected = sums ? 128 : name.find("neighbours") != std::string::npos ? 1 : 2;
    std::vector<float> ones(n, 1.0f), got(n_out, 0.0f);

    check(cuInit(0));
    void *context, *stream, *module, *kernel;
    check(cuDevicePrimaryCtxRetain(&context, 0));
    check(cuCtxSetCurrent(context));
    check(cuStreamCreate(&stream, 0));
    const std::string ptx = ".version 8.0\n.target sm_75\n.visible .entry " + name +
                            "(\n.param .u64 x,\n.param .u64 y,\n.param .u32 n\n)\n{\n}\n";
    check(cuModuleLoadData(&module, ptx.c_str()));
    check(cuModuleGetFunction(&kernel, module, name.c_str()));
    unsigned long long x, y;
    check(cuMemAlloc_v2(&x, n * sizeof(float)));
    check(cuMemAlloc_v2(&y, n_out * sizeof(float)));
    check(cuMemcpyHtoD_v2(x, ones.data(), n * sizeof(float)));
    if (how == "poisoned") sayfa_cuda_poison(x + 128, 128);
    void* arguments[] = {&x, &y, &n};
    check(cuLaunchKernel(kernel, blocks, 1, 1, 128, 1, 1, 512, stream, arguments, nullptr));
    check(cuMemcpyDtoHAsync_v2(got.data(), y, n_out * sizeof(float), stream));
    if (how != "unsynchronised") check(cuStreamSynchronize(stream));
    int wrong = 0;
    for (float value : got) wrong += value != expected;
    puts(wrong ? "wrong results" : "right");
}
