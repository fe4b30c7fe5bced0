import torch
import torch.nn as nn
from torch.utils.cpp_extension import load_inline

src = r"""
#include <torch/extension.h>
#include <algorithm>
torch::Tensor bucket(torch::Tensor x, torch::Tensor bd) {
  x = x.contiguous();
  const int64_t n = x.numel(); const int nb = (int)bd.size(0);
  auto out = torch::empty(x.sizes(), x.options().dtype(torch::kInt64));
  const float* a = x.data_ptr<float>(); const float* b = bd.data_ptr<float>();
  int64_t* o = out.data_ptr<int64_t>();
  const float lo = b[0], inv = (nb - 1) / (b[nb - 1] - b[0]);
  #pragma omp parallel for
  for (int64_t i = 0; i < n; ++i) {
    const float v = a[i];
    float t = (v - lo) * inv + 1.f;
    t = std::min((float)nb, std::max(0.f, t));
    int k = (int)t;
    // rounding can be off by one, look at the neighbours
    if (k > 0 && b[k - 1] >= v) --k;
    else if (k < nb && b[k] < v) ++k;
    o[i] = k;
  }
  return out;
}
"""
ext = load_inline(name="b14a_bucketize", cpp_sources=src, functions=["bucket"],
                  extra_cflags=["-O3", "-march=native", "-fopenmp"], extra_ldflags=["-fopenmp"])


class ModelNew(nn.Module):
    def __init__(self, lo, hi, n):
        super().__init__()
        self.register_buffer("boundaries", torch.linspace(lo, hi, n))

    def forward(self, x):
        return ext.bucket(x, self.boundaries)
