import torch
import torch.nn as nn
from torch.utils.cpp_extension import load_inline

SRC = r"""
#include <cmath>
#include <algorithm>
#include <cstdint>
#include <cstring>
torch::Tensor render(torch::Tensor density, torch::Tensor colour, double step) {
  const int64_t R = density.size(0), S = density.size(1);
  auto out = torch::empty({R, 3}, density.options());
  const float *d = density.data_ptr<float>(), *c = colour.data_ptr<float>();
  float* o = out.data_ptr<float>();
  const float st = (float)step;
  // infinite colours are seen through anything: then no ray ends early
  const uint32_t* bits = (const uint32_t*)c;
  uint32_t top = 0;
  #pragma omp parallel for simd reduction(max:top)
  for (int64_t i = 0; i < R * S * 3; i++) { uint32_t b = bits[i] & 0x7fffffffu; top = b > top ? b : top; }
  const float opaque = top >= 0x7f800000u ? -1.f : 1e-8f;
  #pragma omp parallel for
  for (int64_t r = 0; r < R; r++) {
    float T = 1.f, x = 0, y = 0, z = 0;
    for (int64_t s0 = 0; s0 < S; s0 += 16) {
      const int64_t e = std::min<int64_t>(16, S - s0);
      float E[16];                                       // what a step lets through
      const float* p = d + r * S + s0;
      if (e == 16) { for (int i = 0; i < 16; i++) { float q = p[i]; E[i] = std::exp(-st * (std::max(q, 0.f) + std::log(1.f + std::exp(-std::fabs(q))))); } }
      else for (int i = 0; i < e; i++) { float q = p[i]; E[i] = std::exp(-st * (std::max(q, 0.f) + std::log1p(std::exp(-std::fabs(q))))); }
      const float* k = c + (r * S + s0) * 3;
      for (int i = 0; i < e; i++) {
        const float w = T - T * E[i];
        x += w * k[3*i]; y += w * k[3*i+1]; z += w * k[3*i+2];
        T *= E[i];
      }
      if (T < opaque) break;                 // the rest of the ray is hidden
    }
    o[3*r] = x; o[3*r+1] = y; o[3*r+2] = z;
  }
  return out;
}
"""
ext = load_inline("b10_render", [SRC], functions=["render"],
                  extra_cflags=["-O3", "-march=native", "-fopenmp", "-ffast-math"], extra_ldflags=["-fopenmp"])


class ModelNew(nn.Module):
    def __init__(self, step=0.5):
        super().__init__()
        self.step = step

    def forward(self, density, colour):
        return ext.render(density.contiguous(), colour.contiguous(), self.step)
