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
void cov(P xp, P yp, int64_t d, int64_t n) {
  const float* x = (const float*)xp; float* y = (float*)yp;
  #pragma omp parallel for schedule(dynamic)
  for (int64_t i = 0; i < d; i++)
    for (int64_t j = 0; j <= i; j++) {
      double t = 0;
      for (int64_t s = 0; s < n; s += 4096) {
        int64_t e = std::min(n, s + 4096); float p = 0;
        for (int64_t k = s; k < e; k++) p += x[i * n + k] * x[j * n + k];
        t += p;
      }
      y[i * d + j] = y[j * d + i] = (float)(t / (n - 1));
    }
}
PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) { m.def("cov", &cov); }
"""
ext = load_inline(name="covariance_without_mean_ext", cpp_sources=SRC, no_implicit_headers=True,
                  extra_cflags=["-O3", "-march=native", "-ffast-math", "-fopenmp"],
                  extra_ldflags=["-fopenmp"])


class ModelNew(nn.Module):
    """Covariance of the channels as a blocked symmetric product."""
    def __init__(self):
        super().__init__()

    def forward(self, x):
        x = x.contiguous()
        y = torch.empty(x.shape[0], x.shape[0])
        ext.cov(x.data_ptr(), y.data_ptr(), x.shape[0], x.shape[1])
        return y
