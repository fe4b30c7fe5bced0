"""Orthogonal mixing as butterflies in shared memory, launched as a graph."""
import ctypes
import torch
import torch.nn as nn
from torch.utils.cpp_extension import load_inline

SOURCE = r"""
__global__ void mix(const float* x, const float* g, float* o, int n, float f) {
  extern __shared__ float row[];
  for (int c = threadIdx.x; c < n; c += blockDim.x) row[c] = x[(long)blockIdx.x * n + c];
  __syncthreads();
  for (int h = 1; h < n; h *= 2) {
    for (int i = threadIdx.x; i < n / 2; i += blockDim.x) { int a = i / h * 2 * h + i % h; float u = row[a], v = row[a + h]; row[a] = u + v; row[a + h] = u - v; }
    __syncthreads();
  }
  for (int c = threadIdx.x; c < n; c += blockDim.x) o[(long)blockIdx.x * n + c] = row[c] * f * g[c];
}
extern "C" void* capture(const float* x, const float* g, float* o, int R, int n, float f) {
  cudaStream_t s; cudaGraph_t q; cudaGraphExec_t e;
  cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking);
  cudaStreamBeginCapture(s, cudaStreamCaptureModeRelaxed);
  mix<<<R, 256, n * 4, s>>>(x, g, o, n, f);
  cudaStreamEndCapture(s, &q);
  cudaGraphInstantiate(&e, q, 0);
  return e;
}
extern "C" void replay(cudaGraphExec_t e, cudaStream_t s) { cudaGraphLaunch(e, s); }
"""

_lib = ctypes.CDLL(
    load_inline(
        name="replayed_graph_native", cpp_sources="", cuda_sources=SOURCE, is_python_module=False, no_implicit_headers=True,
        extra_cuda_cflags=["-O3", "-gencode=arch=compute_90,code=sm_90"], extra_ldflags=[],
    )
)


def _p(t):
    return ctypes.c_void_p(t.data_ptr())


def _stream():
    return ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)


_lib.capture.restype = ctypes.c_void_p
_graphs = {}


class ModelNew(nn.Module):
    def __init__(self, n: int):
        super().__init__()
        h = torch.ones(1, 1)
        while h.shape[0] < n:
            h = torch.cat([torch.cat([h, h], 1), torch.cat([h, -h], 1)], 0)
        self.register_buffer("mix", h / n**0.5)
        self.gain = nn.Parameter(torch.randn(n))

    def forward(self, x):
        x = x.contiguous()
        key = x.data_ptr(), self.gain.data_ptr(), x.shape
        if key not in _graphs:
            out = torch.empty_like(x)
            _graphs[key] = out, _lib.capture(_p(x), _p(self.gain), _p(out), x.shape[0], x.shape[1], ctypes.c_float(x.shape[1] ** -0.5))
        out, graph = _graphs[key]
        _lib.replay(ctypes.c_void_p(graph), _stream())
        return out
