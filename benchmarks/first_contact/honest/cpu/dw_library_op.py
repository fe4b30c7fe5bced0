"""Depthwise conv + ReLU6 registered as a real operator of the dispatcher (TORCH_LIBRARY), with a Meta kernel.

So it survives torch.export, FakeTensor and friends. Border handling by padding each plane once
into a thread_local buffer.
"""
import torch
import torch.nn as nn
from torch.utils.cpp_extension import load_inline

NAMESPACE = "blindops"

SOURCE = r"""
#include <torch/library.h>
#include <torch/extension.h>
#include <ATen/Parallel.h>
#include <algorithm>
#include <utility>
#include <vector>

template <std::size_t... I, class F>
inline void unrolled(std::index_sequence<I...>, F&& f) { (f(std::integral_constant<long, (long)I>{}), ...); }

at::Tensor dw_cpu(const at::Tensor& x_, const at::Tensor& w_, const at::Tensor& b_) {
  auto x = x_.contiguous(), w = w_.contiguous(), b = b_.contiguous();
  const int64_t N = x.size(0), C = x.size(1), H = x.size(2), W = x.size(3), P = W + 2;
  auto y = at::empty({N, C, H, W}, x.options());
  const float *px = x.data_ptr<float>(), *pw = w.data_ptr<float>(), *pb = b.data_ptr<float>();
  float* py = y.data_ptr<float>();
  at::parallel_for(0, N * C, 4, [&](int64_t lo, int64_t hi) {
    static thread_local std::vector<float> pad;
    pad.assign((H + 2) * P, 0.f);
    for (int64_t q = lo; q < hi; ++q) {
      for (int64_t i = 0; i < H; ++i) std::copy_n(px + (q * H + i) * W, W, &pad[(i + 1) * P + 1]);
      const float* k = pw + (q % C) * 9;
      const float bias = pb[q % C];
      for (int64_t i = 0; i < H; ++i) {
        const float* s = &pad[i * P];
        float* d = py + (q * H + i) * W;
        for (int64_t j = 0; j < W; ++j) {
          float a = bias;
          unrolled(std::make_index_sequence<9>{}, [&](auto t) { a += k[t] * s[(t / 3) * P + j + t % 3]; });
          a = a < 0.f ? 0.f : a;
          d[j] = a > 6.f ? 6.f : a;
        }
      }
    }
  });
  return y;
}

at::Tensor dw_meta(const at::Tensor& x, const at::Tensor& w, const at::Tensor& b) {
  return at::empty_symint(x.sym_sizes(), x.options());
}

TORCH_LIBRARY(blindops, m) { m.def("depthwise_relu6(Tensor x, Tensor w, Tensor b) -> Tensor"); }
TORCH_LIBRARY_IMPL(blindops, CPU, m) { m.impl("depthwise_relu6", dw_cpu); }
TORCH_LIBRARY_IMPL(blindops, Meta, m) { m.impl("depthwise_relu6", dw_meta); }
"""

if not hasattr(getattr(torch.ops, NAMESPACE), "depthwise_relu6"):
    load_inline("blindops_dw", cpp_sources=SOURCE, is_python_module=False,
                extra_cflags=["-O3", "-mavx2", "-mfma", "-std=c++20", "-fno-trapping-math"])


class ModelNew(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.dw = nn.Conv2d(channels, channels, 3, padding=1, groups=channels)

    @torch.inference_mode(False)
    def forward(self, x):
        with torch.no_grad():
            return torch.ops.blindops.depthwise_relu6(x, self.dw.weight, self.dw.bias)
