"""Orthogonal mixing as log2(n) butterflies per row, gain folded into the last one."""
import ctypes

import torch
import torch.nn as nn
from torch.utils.cpp_extension import load_inline

SOURCE = r"""
#include <math.h>
extern "C" void run(const float* x, const float* g, float* out, long R, long n) {
  float f = 1.0f / sqrtf((float)n);
  #pragma omp parallel for
  for (long r = 0; r < R; r++) {
    float* o = out + r * n;
    for (long c = 0; c < n; c++) o[c] = x[r * n + c];
    for (long h = 1; h < n; h *= 2)
      for (long i = 0; i < n; i += 2 * h)
        for (long j = i; j < i + h; j++) { float a = o[j], b = o[j + h]; o[j] = a + b; o[j + h] = a - b; }
    for (long c = 0; c < n; c++) o[c] *= f * g[c];
  }
}
"""

_lib = ctypes.CDLL(
    load_inline(
        name="butterfly_native", cpp_sources=SOURCE, is_python_module=False, no_implicit_headers=True,
        extra_cflags=["-O3", "-march=native", "-fopenmp"], extra_ldflags=["-fopenmp"],
    )
)


def _p(t):
    return ctypes.c_void_p(t.data_ptr())


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
        out = torch.empty_like(x)
        _lib.run(_p(x), _p(self.gain), _p(out), ctypes.c_long(x.shape[0]), ctypes.c_long(x.shape[1]))
        return out
