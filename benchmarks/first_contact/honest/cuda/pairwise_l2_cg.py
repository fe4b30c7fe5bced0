import ctypes
import hashlib
import os
import subprocess
import tempfile

import torch
import torch.nn as nn

SRC = r"""
#include <cooperative_groups.h>
#include <cooperative_groups/memcpy_async.h>
#include <cuda_runtime.h>

namespace cg = cooperative_groups;

constexpr int TILE = 32, ROWS = 8, CHUNK = 32;

// Block: 32 x 8 threads make a 32 x 32 piece of the result, four rows per thread.
__global__ void pairwise(const float* __restrict__ a, const float* __restrict__ b, float* __restrict__ out, int n, int m, int dim)
{
    __shared__ float sa[TILE][CHUNK + 1], sb[TILE][CHUNK + 1];
    cg::thread_block block = cg::this_thread_block();
    const int i0 = blockIdx.y * TILE, j0 = blockIdx.x * TILE;
    const int tx = threadIdx.x, ty = threadIdx.y;
    float acc[TILE / ROWS] = {};
    for (int d0 = 0; d0 < dim; d0 += CHUNK) {
        for (int r = ty; r < TILE; r += ROWS) {
            const int d = d0 + tx;
            sa[r][tx] = i0 + r < n && d < dim ? a[(size_t)(i0 + r) * dim + d] : 0.f;
            sb[r][tx] = j0 + r < m && d < dim ? b[(size_t)(j0 + r) * dim + d] : 0.f;
        }
        block.sync();
        const int len = min(CHUNK, dim - d0);
        for (int d = 0; d < len; ++d) {
            const float v = sb[tx][d];
            #pragma unroll
            for (int r = 0; r < TILE / ROWS; ++r) {
                const float diff = sa[ty + r * ROWS][d] - v;
                acc[r] = fmaf(diff, diff, acc[r]);
            }
        }
        block.sync();
    }
    for (int r = 0; r < TILE / ROWS; ++r) {
        const int i = i0 + ty + r * ROWS, j = j0 + tx;
        if (i < n && j < m) out[(size_t)i * m + j] = acc[r];
    }
}

extern "C" cudaError_t pairwise_l2(const float* a, const float* b, float* out, int n, int m, int dim, cudaStream_t s)
{
    pairwise<<<dim3((m + TILE - 1) / TILE, (n + TILE - 1) / TILE), dim3(TILE, ROWS), 0, s>>>(a, b, out, n, m, dim);
    return cudaPeekAtLastError();
}
"""


def load():
    if load.lib is None:
        arch = "sm_{}{}".format(*torch.cuda.get_device_capability())
        name = hashlib.sha256((SRC + arch).encode()).hexdigest()[:16]
        folder = os.path.join(tempfile.gettempdir(), "pairwise_l2")
        os.makedirs(folder, mode=0o700, exist_ok=True)
        so = os.path.join(folder, name + ".so")
        if not os.path.exists(so):
            cu = os.path.join(folder, name + ".cu")
            with open(cu, "w") as f:
                f.write(SRC)
            unfinished = so + str(os.getpid())
            subprocess.run(["nvcc", "-std=c++17", "-O3", "-arch", arch, "-shared", "-Xcompiler", "-fPIC,-O2", "-o", unfinished, cu], check=True)
            os.rename(unfinished, so)
        load.lib = ctypes.CDLL(so)
    return load.lib


load.lib = None


class ModelNew(nn.Module):
    def forward(self, a, b):
        a, b = a.contiguous(), b.contiguous()
        out = torch.empty(a.shape[0], b.shape[0], device=a.device)
        code = load().pairwise_l2(ctypes.c_void_p(a.data_ptr()), ctypes.c_void_p(b.data_ptr()), ctypes.c_void_p(out.data_ptr()),
                                  a.shape[0], b.shape[0], a.shape[1], ctypes.c_void_p(torch.cuda.current_stream(a.device).cuda_stream))
        if code != 0:
            raise RuntimeError("CUDA error %d" % code)
        return out
