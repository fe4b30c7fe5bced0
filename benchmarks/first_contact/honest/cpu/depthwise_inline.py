import torch
import torch.nn as nn
from torch.utils.cpp_extension import load_inline

# Depthwise conv 3x3 / stride 2 / pad 1 + hardswish.
# Planes are independent, so the (n, c) loop is the parallel one.

_decl = "torch::Tensor dw_hswish(torch::Tensor x, torch::Tensor w, torch::Tensor b);"

_impl = r"""
#include <ATen/Parallel.h>

namespace {
inline float hardswish(float v) {
  float t = v + 3.0f;
  t = t < 0.0f ? 0.0f : t;
  t = t > 6.0f ? 6.0f : t;
  return v * t / 6.0f;
}
}

torch::Tensor dw_hswish(torch::Tensor x_, torch::Tensor w, torch::Tensor b) {
  TORCH_CHECK(x_.dim() == 4, "expected NCHW");
  auto x = x_.contiguous();
  const int64_t N = x.size(0), C = x.size(1), H = x.size(2), W = x.size(3);
  const int64_t OH = (H - 1) / 2 + 1, OW = (W - 1) / 2 + 1;
  auto y = torch::empty({N, C, OH, OW}, x.options());
  auto xa = x.data_ptr<float>();
  auto wa = w.data_ptr<float>();
  auto ba = b.data_ptr<float>();
  auto ya = y.data_ptr<float>();
  at::parallel_for(0, N * C, 1, [&](int64_t lo, int64_t hi) {
    for (int64_t p = lo; p < hi; ++p) {
      const int64_t c = p % C;
      const float* src = xa + p * H * W;
      float* dst = ya + p * OH * OW;
      const float* k = wa + c * 9;
      for (int64_t oy = 0; oy < OH; ++oy)
        for (int64_t ox = 0; ox < OW; ++ox) {
          float acc = ba[c];
          for (int ky = 0; ky < 3; ++ky) {
            const int64_t iy = oy * 2 + ky - 1;
            if (iy < 0 || iy >= H) continue;
            for (int kx = 0; kx < 3; ++kx) {
              const int64_t ix = ox * 2 + kx - 1;
              if (ix < 0 || ix >= W) continue;
              acc += src[iy * W + ix] * k[ky * 3 + kx];
            }
          }
          dst[oy * OW + ox] = hardswish(acc);
        }
    }
  });
  return y;
}
"""

dw = load_inline(name="dw_hswish_ext", cpp_sources=[_decl, _impl], functions="dw_hswish", extra_cflags=["-O3"], verbose=False)


class ModelNew(nn.Module):
    def __init__(self, channels: int):
        super().__init__()
        self.dw = nn.Conv2d(channels, channels, 3, stride=2, padding=1, groups=channels, bias=True)

    def forward(self, x):
        return dw.dw_hswish(x, self.dw.weight, self.dw.bias)
