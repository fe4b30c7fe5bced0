"""conv3d + leaky relu: pad once into a per-thread slab, then 27 taps x channels as axpy over contiguous rows."""
import torch
from torch import nn
from torch.utils.cpp_extension import load_inline

_ext = load_inline(
    name="conv3d_taps_v3",
    cpp_sources=r"""
#include <torch/extension.h>
#include <ATen/Parallel.h>
#include <vector>

torch::Tensor forward(torch::Tensor x, torch::Tensor w, torch::Tensor b) {
  x = x.contiguous(); w = w.contiguous(); b = b.contiguous();
  const int64_t N = x.size(0), C = x.size(1), D = x.size(2), H = x.size(3), W = x.size(4), O = w.size(0);
  const int64_t dp = D + 2, hp = H + 2, wp = W + 2;
  auto y = torch::empty({N, O, D, H, W}, x.options());
  const float* px = x.data_ptr<float>(); const float* pw = w.data_ptr<float>(); const float* pb = b.data_ptr<float>();
  float* py = y.data_ptr<float>();
  for (int64_t n = 0; n < N; ++n) {
    std::vector<float> pad(C * dp * hp * wp, 0.f);
    for (int64_t c = 0; c < C; ++c)
      for (int64_t d = 0; d < D; ++d)
        for (int64_t h = 0; h < H; ++h)
          std::copy_n(px + (((n * C + c) * D + d) * H + h) * W, W, &pad[((c * dp + d + 1) * hp + h + 1) * wp + 1]);
    at::parallel_for(0, O * D, 1, [&](int64_t lo, int64_t hi) {
      static thread_local std::vector<float> acc;
      acc.resize(hp * wp);                       // rows stay padded, so a tap is one long axpy
      const int64_t len = (H - 1) * wp + W;
      for (int64_t od = lo; od < hi; ++od) {
        const int64_t o = od / D, d = od % D;
        std::fill_n(acc.begin(), len, pb[o]);
        for (int64_t c = 0; c < C; ++c)
          for (int kd = 0; kd < 3; ++kd)
            for (int kh = 0; kh < 3; ++kh) {
              const float* s = &pad[((c * dp + d + kd) * hp + kh) * wp];
              const float* k = pw + (((o * C + c) * 3 + kd) * 3 + kh) * 3;
              const float k0 = k[0], k1 = k[1], k2 = k[2];
              float* a = acc.data();
              #pragma GCC ivdep
              for (int64_t i = 0; i < len; ++i) a[i] += k0 * s[i] + k1 * s[i + 1] + k2 * s[i + 2];
            }
        float* out = py + ((n * O + o) * D + d) * H * W;
        for (int64_t h = 0; h < H; ++h)
          for (int64_t i = 0; i < W; ++i) {
            const float v = acc[h * wp + i];
            out[h * W + i] = v > 0 ? v : 0.1f * v;
          }
      }
    });
  }
  return y;
}
""",
    functions=["forward"],
    extra_cflags=["-O3", "-march=native"],
)


class ModelNew(nn.Module):
    def __init__(self, cin: int, cout: int):
        super().__init__()
        self.conv = nn.Conv3d(cin, cout, 3, padding=1)   # only holds the parameters

    def forward(self, x):
        return _ext.forward(x, self.conv.weight.detach(), self.conv.bias.detach())
