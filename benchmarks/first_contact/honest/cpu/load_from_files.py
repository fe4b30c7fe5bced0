"""Two-layer tanh MLP; header, source and binding are files of their own, built by torch.utils.cpp_extension.load."""
import pathlib
import tempfile

import torch
import torch.nn as nn
from torch.utils.cpp_extension import load

FILES = {
    "mlp.h": "#pragma once\nvoid dense(const float* x, const float* w, const float* b, float* y, long n, long k, long m, bool squash);\n",
    "mlp.cpp": r"""
#include "mlp.h"
#include <cmath>
void dense(const float* x, const float* w, const float* b, float* y, long n, long k, long m, bool squash) {
  #pragma omp parallel for
  for (long i = 0; i < n; ++i)
    for (long j = 0; j < m; ++j) {
      float l[16] = {};
      for (long t = 0; t < k; t += 16) for (int u = 0; u < 16; ++u) l[u] += x[i * k + t + u] * w[j * k + t + u];
      float s = b ? b[j] : 0.0f;
      for (float v : l) s += v;
      y[i * m + j] = squash ? std::tanh(s) : s;
    }
}
""",
    "binding.cpp": r"""
#include <torch/extension.h>
#include "mlp.h"
torch::Tensor mlp(torch::Tensor x, torch::Tensor w1, torch::Tensor b1, torch::Tensor w2) {
  TORCH_CHECK(x.is_contiguous() && x.scalar_type() == torch::kFloat32, "float32, contiguous");
  auto hidden = torch::empty({x.size(0), w1.size(0)}, x.options());
  auto out = torch::empty({x.size(0), w2.size(0)}, x.options());
  dense(x.data_ptr<float>(), w1.data_ptr<float>(), b1.data_ptr<float>(), hidden.data_ptr<float>(), x.size(0), x.size(1), w1.size(0), true);
  dense(hidden.data_ptr<float>(), w2.data_ptr<float>(), nullptr, out.data_ptr<float>(), x.size(0), w1.size(0), w2.size(0), false);
  return out;
}
PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) { m.def("mlp", &mlp); }
""",
}
root = pathlib.Path(tempfile.mkdtemp())
for name, text in FILES.items():
    (root / name).write_text(text)
ext = load("tanh_mlp", [str(root / "mlp.cpp"), str(root / "binding.cpp")], extra_cflags=["-O3", "-march=native", "-fopenmp"], extra_ldflags=["-lgomp"], build_directory=str(root))


class ModelNew(nn.Module):
    def __init__(self, inputs, hidden, outputs):
        super().__init__()
        self.fc1 = nn.Linear(inputs, hidden)
        self.fc2 = nn.Linear(hidden, outputs, bias=False)

    def forward(self, x):
        return ext.mlp(x, self.fc1.weight.detach(), self.fc1.bias.detach(), self.fc2.weight.detach())
