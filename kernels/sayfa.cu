// All kernels, so that one PTX file a target is the whole of them.
#include "norm.cu"
#include "matvec.cu"
#include "matmul.cu"
#include "rope.cu"
#include "attention.cu"
#include "attention_prefill.cu"
#include "best.cu"
