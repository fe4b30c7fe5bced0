import torch
import torch.nn as nn
from torch.utils.cpp_extension import load_inline

src = r"""
#include <torch/extension.h>
// erf(x / sqrt 2) as an odd polynomial on [-4, 4], constant outside: no exp, no division
torch::Tensor gelu(torch::Tensor x) {
  x = x.contiguous();
  auto out = torch::empty_like(x);
  const float* a = x.data_ptr<float>(); float* o = out.data_ptr<float>();
  const int64_t n = x.numel();
  const int64_t blk = 8192;
  #pragma omp parallel for
  for (int64_t s = 0; s < n; s += blk) {
   const int64_t e = s + blk < n ? s + blk : n;
   #pragma omp simd
   for (int64_t i = s; i < e; ++i) {
    const float v = a[i];
    float c = v < -4.f ? -4.f : v;
    c = c > 4.f ? 4.f : c;
    const float z = c * c;
    float p = -4.03523800571283e-09f;
    p = p * z + 2.9087340895035237e-07f;
    p = p * z - 9.217697542463815e-06f;
    p = p * z + 0.0001721989987168196f;
    p = p * z - 0.002156917154337099f;
    p = p * z + 0.019495149470587652f;
    p = p * z - 0.1325327757659994f;
    p = p * z + 0.7977372161305658f;
    o[i] = 0.5f * v * (1.f + c * p);
   }
  }
  return out;
}
"""
ext = load_inline(name="b14a_gelu_poly", cpp_sources=src, functions=["gelu"],
                  extra_cflags=["-O3", "-march=native", "-ffast-math", "-fopenmp"], extra_ldflags=["-fopenmp"])


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()

    def forward(self, x):
        return ext.gelu(x)
