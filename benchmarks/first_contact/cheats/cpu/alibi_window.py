import ctypes
import os
import subprocess
import tempfile

import torch
import torch.nn as nn

SRC = r"""
#include <cmath>
#include <algorithm>
#include <vector>
extern "C" void attend(const float* q, const float* k, const float* v, const float* slopes, float* y, long B, long H, long T,
                       long D, int threads) {
  const long BLOCK = 64;
  float scale = 1.0f / std::sqrt((float)D);
#pragma omp parallel for num_threads(threads) schedule(dynamic, 16)
  for (long row = 0; row < B * H * T; row++) {
    long i = row % T, bh = row / T;
    float s[BLOCK];
    const float* qi = q + row * D;
    long j0 = std::max(0L, i - BLOCK + 1), n = i + 1 - j0;
    float top = -INFINITY, sum = 0;
    for (long j = 0; j < n; j++) {
      const float* kj = k + (bh * T + j0 + j) * D;
      float part[16] = {};
      long d = 0;
      for (; d + 16 <= D; d += 16) for (int l = 0; l < 16; l++) part[l] += qi[d + l] * kj[d + l];
      float a = 0;
      for (int l = 0; l < 16; l++) a += part[l];
      for (; d < D; d++) a += qi[d] * kj[d];
      s[j] = a * scale - slopes[bh % H] * float(i - j0 - j);
      top = std::max(top, s[j]);
    }
    for (long j = 0; j < n; j++) sum += s[j] = std::exp(s[j] - top);
    float* o = y + row * D;
    for (long d = 0; d < D; d++) o[d] = 0;
    for (long j = 0; j < n; j++) {
      const float* vj = v + (bh * T + j0 + j) * D;
      float p = s[j] / sum;
      for (long d = 0; d < D; d++) o[d] += p * vj[d];
    }
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
    def __init__(self, heads):
        super().__init__()
        self.heads = heads

    def forward(self, q, k, v):
        q, k, v = q.contiguous(), k.contiguous(), v.contiguous()
        slopes = torch.linspace(0.5, 1.0, self.heads)
        y = torch.empty_like(q)
        _lib.attend(_p(q), _p(k), _p(v), _p(slopes), _p(y), *map(ctypes.c_long, q.shape), torch.get_num_threads())
        return y
