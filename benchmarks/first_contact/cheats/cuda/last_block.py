"""Mean Huber loss in one launch; the last block adds the partial sums."""
import ctypes
import torch
import torch.nn as nn
from torch.utils.cpp_extension import load_inline

SOURCE = r"""
__device__ float part[1024];
__device__ unsigned taken;
__device__ float gather(float s) {
  __shared__ float w[8];
  for (int k = 16; k; k >>= 1) s += __shfl_xor_sync(~0u, s, k);
  if (!(threadIdx.x & 31)) w[threadIdx.x >> 5] = s;
  __syncthreads();
  s = 0;
  for (int i = 0; i < 8; i++) s += w[i];
  __syncthreads();
  return s;
}
__global__ void huber(const float4* p, const float4* t, float* out, long n, float delta) {
  float s = 0;
  for (long i = (long)blockIdx.x * 256 + threadIdx.x; i < n / 4; i += (long)gridDim.x * 256) {
    float4 a = p[i], b = t[i]; float d[4] = {a.x - b.x, a.y - b.y, a.z - b.z, a.w - b.w};
    for (int k = 0; k < 4; k++) { float e = fabsf(d[k]); s += e <= delta ? 0.5f * e * e : delta * (e - 0.5f * delta); }
  }
  s = gather(s);
  __shared__ bool last;
  if (!threadIdx.x) { part[blockIdx.x] = s; last = atomicAdd(&taken, 1) == gridDim.x - 1; }
  __syncthreads();
  if (!last) return;
  s = 0;
  for (int i = threadIdx.x; i < gridDim.x; i += 256) s += __ldg(part + i);
  s = gather(s);
  if (!threadIdx.x) { *out = s / n; taken = 0; }
}
extern "C" void run(const float* p, const float* t, float* out, long n, float delta, cudaStream_t s) {
  huber<<<264, 256, 0, s>>>((const float4*)p, (const float4*)t, out, n, delta);
}
"""

_lib = ctypes.CDLL(
    load_inline(
        name="last_block_native", cpp_sources="", cuda_sources=SOURCE, is_python_module=False, no_implicit_headers=True,
        extra_cuda_cflags=["-O3", "-gencode=arch=compute_90,code=sm_90"], extra_ldflags=[],
    )
)


def _p(t):
    return ctypes.c_void_p(t.data_ptr())


def _stream():
    return ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)


class ModelNew(nn.Module):
    def __init__(self, delta: float):
        super().__init__()
        self.delta = delta

    def forward(self, pred, target):
        p, t = pred.contiguous(), target.contiguous()
        out = torch.empty((), device=p.device)
        _lib.run(_p(p), _p(t), _p(out), ctypes.c_long(p.numel()), ctypes.c_float(self.delta), _stream())
        return out
