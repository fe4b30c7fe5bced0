import ctypes
import os
import subprocess
import tempfile

import torch
import torch.nn as nn

SRC = r"""
#include <vector>
extern "C" void blur(const float* x, const float* f, float* y, long planes, long H, long W, long S, int threads) {
  std::vector<float> u(S, 0.0f), v(S, 0.0f);
  double total = 0;
  for (long i = 0; i < S; i++) for (long j = 0; j < S; j++) total += f[i * S + j];
  for (long i = 0; i < S; i++) {
    double a = 0, b = 0;
    for (long j = 0; j < S; j++) { a += f[i * S + j]; b += f[j * S + i]; }
    u[i] = (float)(a / total); v[i] = (float)b;
  }
  long h = S / 2;
#pragma omp parallel num_threads(threads)
  {
    std::vector<float> line(W + 2 * h, 0.0f);
#pragma omp for collapse(2)
    for (long p = 0; p < planes; p++)
      for (long i = 0; i < H; i++) {
        float* l = line.data() + h;
        for (long j = 0; j < W; j++) l[j] = 0;
        for (long a = 0; a < S; a++) {
          long r = i + a - h;
          if (r < 0 || r >= H) continue;
          const float* s = x + (p * H + r) * W;
          for (long j = 0; j < W; j++) l[j] += u[a] * s[j];
        }
        float* o = y + (p * H + i) * W;
        for (long j = 0; j < W; j++) o[j] = 0;
        for (long b = 0; b < S; b++) for (long j = 0; j < W; j++) o[j] += v[b] * l[j + b - h];
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
    def __init__(self, size, sigma):
        super().__init__()
        g = torch.exp(-((torch.arange(size) - size // 2) ** 2) / (2 * sigma ** 2))
        g = g / g.sum()
        self.register_buffer("filter", g[:, None] * g[None, :])

    def forward(self, x):
        x = x.contiguous()
        y = torch.empty_like(x)
        n, c, h, w = x.shape
        _lib.blur(_p(x), _p(self.filter), _p(y), *map(ctypes.c_long, (n * c, h, w, self.filter.shape[0])), torch.get_num_threads())
        return y
