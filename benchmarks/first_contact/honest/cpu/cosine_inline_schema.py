import torch
import torch.nn as nn
from torch.utils import cpp_extension

# TORCH_LIBRARY style: no pybind for the call itself, the operator is torch.ops.cosrow.similarity.
_SOURCE = """
#include <torch/library.h>
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <cmath>

namespace {
at::Tensor similarity(const at::Tensor& a_, const at::Tensor& b_, double eps) {
  auto a = a_.contiguous(), b = b_.contiguous();
  auto out = at::empty({a.size(0)}, a.options());
  const int64_t n = a.size(1);
  const float* pa = a.const_data_ptr<float>();
  const float* pb = b.const_data_ptr<float>();
  float* po = out.mutable_data_ptr<float>();
  at::parallel_for(0, a.size(0), 16, [=](int64_t begin, int64_t end) {
    for (auto r = begin; r < end; ++r) {
      double ab = 0, aa = 0, bb = 0;
      for (int64_t i = r * n; i < (r + 1) * n; ++i) {
        const double u = pa[i], v = pb[i];
        ab += u * v;
        aa += u * u;
        bb += v * v;
      }
      po[r] = static_cast<float>(ab / (std::max(std::sqrt(aa), eps) * std::max(std::sqrt(bb), eps)));
    }
  });
  return out;
}
}

TORCH_LIBRARY_FRAGMENT(cosrow, m) { m.def("similarity(Tensor a, Tensor b, float eps) -> Tensor"); }
TORCH_LIBRARY_IMPL(cosrow, CPU, m) { m.impl("similarity", similarity); }
"""

if not hasattr(torch.ops.cosrow, "similarity"):
    cpp_extension.load_inline(name="cosrow_ops", cpp_sources=_SOURCE, extra_cflags=["-O3", "-march=native"], is_python_module=False)


class ModelNew(nn.Module):
    def __init__(self, eps: float):
        super().__init__()
        self.eps = eps

    def forward(self, a, b):
        with torch.no_grad():
            return torch.ops.cosrow.similarity(a, b, self.eps)
