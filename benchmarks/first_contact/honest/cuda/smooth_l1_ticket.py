# Reduction in one launch: the block that draws the last ticket adds up what all blocks left in the workspace.
# The ticket is an integer; the floating-point order is fixed, so two runs give the same bits.
import ctypes
import os
import subprocess
import tempfile

import torch
import torch.nn as nn

CU = r"""
#include <cuda_runtime.h>
#include <stdint.h>

#define THREADS 256

template <typename T>
static __device__ T reduce(T v)
{
    __shared__ T s[THREADS];
    s[threadIdx.x] = v;
    __syncthreads();
    for (int w = THREADS / 2; w; w /= 2) {
        if (threadIdx.x < w) s[threadIdx.x] += s[threadIdx.x + w];
        __syncthreads();
    }
    T r = s[0];
    __syncthreads();
    return r;
}

static __device__ __forceinline__ double term(float p, float t, float beta)
{
    float d = fabsf(p - t);
    return d < beta ? 0.5 * (double)d * d / beta : (double)d - 0.5 * beta;
}

static __global__ void smooth_l1(const float* __restrict__ p, const float* __restrict__ t, int64_t n, float beta,
                                 double* partial, unsigned* ticket, float* out)
{
    double s = 0;
    for (int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x; i < n; i += (int64_t)gridDim.x * THREADS) s += term(p[i], t[i], beta);
    s = reduce(s);
    __shared__ bool last;
    if (threadIdx.x == 0) {
        partial[blockIdx.x] = s;
        __threadfence();
        last = atomicAdd(ticket, 1u) == gridDim.x - 1;
    }
    __syncthreads();
    if (!last) return;
    __threadfence();
    double a = 0;
    for (unsigned i = threadIdx.x; i < gridDim.x; i += THREADS) a += ((volatile double*)partial)[i];
    a = reduce(a);
    if (threadIdx.x == 0) *out = (float)(a / (double)n);
}

extern "C" const char* smooth_l1_mean(const float* p, const float* t, int64_t n, float beta, char* workspace, int blocks, float* out, cudaStream_t stream)
{
    cudaError_t e = cudaMemsetAsync(workspace, 0, 16, stream);      // the ticket
    if (e == cudaSuccess) {
        smooth_l1<<<blocks, THREADS, 0, stream>>>(p, t, n, beta, (double*)(workspace + 16), (unsigned*)workspace, out);
        e = cudaGetLastError();
    }
    return e == cudaSuccess ? nullptr : cudaGetErrorString(e);
}
"""

lib = None


def build():
    global lib
    root = tempfile.mkdtemp()
    cu = os.path.join(root, "smooth_l1.cu")
    with open(cu, "w") as f:
        f.write(CU)
    major, minor = torch.cuda.get_device_capability()
    subprocess.run(["nvcc", "-O2", "-gencode", f"arch=compute_{major}{minor},code=sm_{major}{minor}", "--shared", "-Xcompiler=-fPIC", cu, "-o",
                    cu[:-2] + "so"], check=True)
    lib = ctypes.CDLL(cu[:-2] + "so")
    lib.smooth_l1_mean.restype = ctypes.c_char_p
    lib.smooth_l1_mean.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_float, ctypes.c_void_p, ctypes.c_int,
                                   ctypes.c_void_p, ctypes.c_void_p]


class ModelNew(nn.Module):
    def __init__(self, beta: float):
        super().__init__()
        self.beta = beta

    def forward(self, prediction, target):
        if lib is None:
            build()
        p, t = prediction.contiguous(), target.contiguous()
        if p.shape != t.shape:
            raise ValueError("prediction and target differ in shape")
        n = p.numel()
        blocks = max(1, min(512, (n + 1023) // 1024))
        workspace = torch.empty(16 + 8 * blocks, dtype=torch.uint8, device=p.device)
        out = torch.empty((), dtype=torch.float32, device=p.device)
        error = lib.smooth_l1_mean(p.data_ptr(), t.data_ptr(), n, self.beta, workspace.data_ptr(), blocks, out.data_ptr(),
                                   torch.cuda.current_stream().cuda_stream)
        if error:
            raise RuntimeError(error.decode())
        return out
