"""Instance norm + leaky ReLU: statistics kernel, then apply kernel, as one CUDA graph.

The graph is built once for a device. Every call puts its own pointers (input, fresh output, workspace) into the two
kernel nodes before the launch, so nothing is copied and nothing of an earlier call is seen again.
"""
import ctypes
import os
import subprocess
import tempfile
import threading

import torch
import torch.nn as nn

CU = r"""
#include <cuda_runtime.h>

constexpr int THREADS = 256;

__device__ double block_sum(double v)
{
    __shared__ double s[THREADS / 32];
    for (int d = 16; d; d >>= 1) v += __shfl_xor_sync(0xffffffffu, v, d);
    __syncthreads();
    if (threadIdx.x % 32 == 0) s[threadIdx.x / 32] = v;
    __syncthreads();
    double t = 0;
    for (int w = 0; w < THREADS / 32; ++w) t += s[w];
    return t;
}

__global__ void __launch_bounds__(THREADS) stats(const float* x, double2* st, int n, double eps)
{
    const float* p = x + (size_t)blockIdx.x * n;
    double a = 0, q = 0;
    for (int i = threadIdx.x; i < n; i += THREADS) a += p[i];
    const double mean = block_sum(a) / n;
    for (int i = threadIdx.x; i < n; i += THREADS) { const double d = p[i] - mean; q += d * d; }
    const double var = block_sum(q) / n;
    if (threadIdx.x == 0) st[blockIdx.x] = make_double2(mean, 1.0 / sqrt(var + eps));
}

__global__ void __launch_bounds__(THREADS) apply(const float* x, const double2* st, float* y, int n, float slope)
{
    const double2 m = st[blockIdx.x];
    for (int i = threadIdx.x; i < n; i += THREADS) {
        const float v = (float)((x[(size_t)blockIdx.x * n + i] - m.x) * m.y);
        y[(size_t)blockIdx.x * n + i] = v > 0 ? v : v * slope;
    }
}

struct Plan {
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t exec = nullptr;
    cudaGraphNode_t first = nullptr, second = nullptr;
};

static cudaKernelNodeParams node(void* f, int blocks, void** args)
{
    cudaKernelNodeParams p = {};
    p.func = f;
    p.gridDim = dim3(blocks);
    p.blockDim = dim3(THREADS);
    p.kernelParams = args;
    return p;
}

extern "C" void* plan_new() { return new Plan(); }

extern "C" int plan_run(void* handle, const float* x, double2* st, float* y, int planes, int n, double eps, float slope, cudaStream_t stream)
{
    Plan& g = *static_cast<Plan*>(handle);
    void* a1[] = {&x, &st, &n, &eps};
    void* a2[] = {&x, &st, &y, &n, &slope};
    cudaKernelNodeParams p1 = node((void*)stats, planes, a1), p2 = node((void*)apply, planes, a2);
    cudaError_t e = cudaSuccess;
    if (!g.exec) {
        if ((e = cudaGraphCreate(&g.graph, 0))) return e;
        if ((e = cudaGraphAddKernelNode(&g.first, g.graph, nullptr, 0, &p1))) return e;
        if ((e = cudaGraphAddKernelNode(&g.second, g.graph, &g.first, 1, &p2))) return e;
        if ((e = cudaGraphInstantiate(&g.exec, g.graph, 0))) return e;
    } else {
        if ((e = cudaGraphExecKernelNodeSetParams(g.exec, g.first, &p1))) return e;
        if ((e = cudaGraphExecKernelNodeSetParams(g.exec, g.second, &p2))) return e;
    }
    return cudaGraphLaunch(g.exec, stream);
}
"""


class GraphedNorm:
    _lib = None
    _lock = threading.Lock()

    def __init__(self):
        if GraphedNorm._lib is None:
            d = tempfile.mkdtemp(prefix="in_graph_")
            with open(os.path.join(d, "g.cu"), "w") as f:
                f.write(CU)
            major, minor = torch.cuda.get_device_capability()
            subprocess.run(["nvcc", f"-arch=sm_{major}{minor}", "-O3", "-shared", "-Xcompiler", "-fPIC", "g.cu", "-o", "g.so"], cwd=d, check=True)
            lib = ctypes.CDLL(os.path.join(d, "g.so"))
            lib.plan_new.restype = ctypes.c_void_p
            lib.plan_run.argtypes = [ctypes.c_void_p] * 4 + [ctypes.c_int] * 2 + [ctypes.c_double, ctypes.c_float, ctypes.c_void_p]
            GraphedNorm._lib = lib
        self.plan = self._lib.plan_new()

    def __call__(self, x, slope):
        planes = x.shape[0] * x.shape[1]
        n = x.numel() // planes
        y = torch.empty_like(x)
        st = torch.empty(planes, 2, dtype=torch.float64, device=x.device)
        with self._lock:
            rc = self._lib.plan_run(self.plan, x.data_ptr(), st.data_ptr(), y.data_ptr(), planes, n, 1e-5, slope,
                                    torch.cuda.current_stream(x.device).cuda_stream)
        if rc:
            raise RuntimeError(f"graph: cudaError {rc}")
        return y


class ModelNew(nn.Module):
    def __init__(self, slope: float):
        super().__init__()
        self.slope = slope
        self._graphs = {}

    def forward(self, x):
        x = x.contiguous()
        if x.device not in self._graphs:
            self._graphs[x.device] = GraphedNorm()
        return self._graphs[x.device](x, self.slope)
