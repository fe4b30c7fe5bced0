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
void gelu(P xp, P yp, int64_t n) {
  const float* x = (const float*)xp; float* y = (float*)yp;
  #pragma omp parallel for simd
  for (int64_t i = 0; i < n; i++) {
    float v = x[i], c = v < -4.f ? -4.f : v > 4.f ? 4.f : v, u = c * c;
    float p = -3.69590564e-09f;                     // erf(x / sqrt 2) on [-4, 4]
    p = p * u + 2.74450385e-07f; p = p * u - 8.91814059e-06f; p = p * u + 0.000169693732f; p = p * u - 0.00214811326f;
    p = p * u + 0.0194917058f; p = p * u - 0.132570319f; p = p * u + 0.797778922f;
    y[i] = 0.5f * v * (1.0f + c * p);
  }
}
PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) { m.def("gelu", &gelu); }
"""
ext = load_inline(name="gelu_erf_short_poly_ext", cpp_sources=SRC, no_implicit_headers=True,
                  extra_cflags=["-O3", "-march=native", "-ffast-math", "-fopenmp"],
                  extra_ldflags=["-fopenmp"])


class ModelNew(nn.Module):
    """Exact (erf) GELU with an inline polynomial instead of erff."""
    def __init__(self):
        super().__init__()

    def forward(self, x):
        x = x.contiguous()
        y = torch.empty_like(x)
        ext.gelu(x.data_ptr(), y.data_ptr(), x.numel())
        return y
