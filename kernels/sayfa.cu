// All kernels, so that one PTX file a target is the whole of them.
#include "device.cuh"
#include "types.cuh"
#if __has_include("norm.cu")
#include "norm.cu"
#endif
#if __has_include("matvec.cu")
#include "matvec.cu"
#endif
#if __has_include("matmul.cu")
#include "matmul.cu"
#endif
#if __has_include("rope.cu")
#include "rope.cu"
#endif
#if __has_include("attention.cu")
#include "attention.cu"
#endif
#if __has_include("best.cu")
#include "best.cu"
#endif
