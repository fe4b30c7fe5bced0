import torch
import torch.nn as nn
from torch.utils.cpp_extension import load_inline

src = r"""
#include <torch/extension.h>
#include <algorithm>
torch::Tensor pool(torch::Tensor x, int64_t S) {
  x = x.contiguous();
  const int64_t P = x.size(0) * x.size(1), H = x.size(2), W = x.size(3), h = H / S, w = W / S;
  TORCH_CHECK(H % S == 0 && W % S == 0);
  auto out = torch::zeros({x.size(0), x.size(1), S, S}, x.options());
  const float* xp = x.data_ptr<float>(); float* o = out.data_ptr<float>();
  #pragma omp parallel for
  for (int64_t p = 0; p < P; ++p)
    for (int64_t y = 0; y < H; ++y)
      for (int64_t s = 0; s < S; ++s) {
        const float* a = xp + (p * H + y) * W + s * w;
        float m = o[(p * S + y / h) * S + s];
        #pragma omp simd reduction(max:m)
        for (int64_t i = 0; i < w; ++i) m = std::max(m, a[i]);
        o[(p * S + y / h) * S + s] = m;
      }
  return out;
}
"""
ext = load_inline(name="b14a_amaxpool", cpp_sources=src, functions=["pool"],
                  extra_cflags=["-O3", "-march=native", "-ffast-math", "-fopenmp"], extra_ldflags=["-fopenmp"])


class ModelNew(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.size = size

    def forward(self, x):
        return ext.pool(x, self.size)
