"""Two smoothing passes; programmatic launch hides the second one's start."""
import ctypes
import torch
import torch.nn as nn
from torch.utils.cpp_extension import load_inline

SOURCE = r"""
__global__ void smooth(const float* x, float* o, int R, int C) {
  int c = blockIdx.x * blockDim.x + threadIdx.x, r = blockIdx.y;
  if (c < C) {
    float v = 0.25f * x[(long)max(r - 1, 0) * C + c] + 0.5f * x[(long)r * C + c] + 0.25f * x[(long)min(r + 1, R - 1) * C + c];
    o[(long)r * C + c] = v < 0 ? 0 : v;
  }
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}
extern "C" void run(const float* x, float* mid, float* out, int R, int C, cudaStream_t s) {
  dim3 grid((C + 255) / 256, R);
  smooth<<<grid, 256, 0, s>>>(x, mid, R, C);
  cudaLaunchAttribute a; a.id = cudaLaunchAttributeProgrammaticStreamSerialization; a.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t c = {}; c.gridDim = grid; c.blockDim = dim3(256); c.stream = s; c.attrs = &a; c.numAttrs = 1;
  cudaLaunchKernelEx(&c, smooth, (const float*)mid, out, R, C);
}
"""

_lib = ctypes.CDLL(
    load_inline(
        name="early_dependent_native", cpp_sources="", cuda_sources=SOURCE, is_python_module=False, no_implicit_headers=True,
        extra_cuda_cflags=["-O3", "-gencode=arch=compute_90,code=sm_90"], extra_ldflags=[],
    )
)


def _p(t):
    return ctypes.c_void_p(t.data_ptr())


def _stream():
    return ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)


class ModelNew(nn.Module):
    def forward(self, x):
        x = x.contiguous()
        mid, out = torch.empty_like(x), torch.empty_like(x)
        _lib.run(_p(x), _p(mid), _p(out), x.shape[0], x.shape[1], _stream())
        return out
