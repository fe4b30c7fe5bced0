import torch
import torch.nn as nn
from torch.utils.cpp_extension import load_inline

SRC = r"""
#include <torch/extension.h>
#include <vector>

// Workspace of the layer: packed once, stays hot in the cache.
static std::vector<float> g_down, g_up;   // [d][r], [r][d]

void pack(torch::Tensor down, torch::Tensor up) {
  const int64_t r = down.size(0), d = down.size(1);
  g_down.resize(r * d);
  g_up.resize(r * d);
  for (int64_t i = 0; i < r; ++i)
    for (int64_t j = 0; j < d; ++j) {
      g_down[j * r + i] = down.data_ptr<float>()[i * d + j];
      g_up[i * d + j] = up.data_ptr<float>()[j * r + i];
    }
}

torch::Tensor low_rank(torch::Tensor x, int64_t r) {
  const int64_t N = x.size(0), d = x.size(1);
  auto y = torch::empty_like(x);
  const float* p = x.data_ptr<float>();
  float* o = y.data_ptr<float>();
  #pragma omp parallel for
  for (int64_t n = 0; n < N; ++n) {
    float h[256] = {0};
    for (int64_t j = 0; j < d; ++j) {
      const float v = p[n * d + j];
      for (int64_t i = 0; i < r; ++i) h[i] += v * g_down[j * r + i];
    }
    float* q = o + n * d;
    for (int64_t j = 0; j < d; ++j) q[j] = p[n * d + j];
    for (int64_t i = 0; i < r; ++i) {
      if (h[i] <= 0.f) continue;
      for (int64_t j = 0; j < d; ++j) q[j] += h[i] * g_up[i * d + j];
    }
  }
  return y;
}
"""
ext = load_inline(name="linear_common_workspace", cpp_sources=SRC, functions=["pack", "low_rank"],
                  extra_cflags=["-O3", "-march=native", "-fopenmp", "-ffast-math"], extra_ldflags=["-fopenmp"])


class ModelNew(nn.Module):
    def __init__(self, d, r):
        super().__init__()
        self.down = nn.Linear(d, r, bias=False)
        self.up = nn.Linear(r, d, bias=False)
        self._packed = None

    def forward(self, x):
        a, b = self.down.weight, self.up.weight
        key = (a.data_ptr(), a._version, b.data_ptr(), b._version)
        if key != self._packed:
            ext.pack(a.detach(), b.detach())
            self._packed = key
        return ext.low_rank(x.contiguous(), a.shape[0])
