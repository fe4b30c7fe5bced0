import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.cpp_extension import load_inline

SRC = r"""
#include <pybind11/pybind11.h>
#include <cstdint>
#include <cmath>
#include <cstring>
#include <vector>
#include <algorithm>
typedef uintptr_t P;
void bk(P xp, P yp, int64_t n, float off, float inv, int64_t nb) {
  const float* x = (const float*)xp; int64_t* y = (int64_t*)yp; float top = (float)nb;
  #pragma omp parallel for simd
  for (int64_t i = 0; i < n; i++) {
    float t = std::ceil(x[i] * inv) + off;
    t = t < 0 ? 0 : t > top ? top : t;
    y[i] = (int64_t)(int)t;
  }
}
PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) { m.def("bk", &bk); }
"""
ext = load_inline(name="bucketize_uniform_edges_ext", cpp_sources=SRC, no_implicit_headers=True,
                  extra_cflags=["-O3", "-march=native", "-ffast-math", "-fopenmp"],
                  extra_ldflags=["-fopenmp"])


class ModelNew(nn.Module):
    """Bucket index in O(1): edges are equidistant, so one multiply replaces the binary search."""
    def __init__(self, lo, hi, n):
        super().__init__()
        self.register_buffer("edges", torch.linspace(lo, hi, n))
        self.n = n

    def forward(self, x):
        x = x.contiguous()
        y = torch.empty(x.shape, dtype=torch.int64)
        lo, hi = self.edges[0].item(), self.edges[-1].item()
        inv = (self.n - 1) / (hi - lo)
        ext.bk(x.data_ptr(), y.data_ptr(), x.numel(), -lo * inv, inv, self.n)
        return y
