import ctypes, os, subprocess, tempfile
import torch
import torch.nn as nn

SRC = r"""
#include <math.h>
extern "C" void k(const float* x, const float* w, const float* b, const float* rm, const float* rv, float* y,
                  int n, int c, int s, int train) {
  #pragma omp parallel for num_threads(2)
  for (int q = 0; q < c; q++) {
    double m = rm[q], v = rv[q];
    if (train) {
      double sm = 0, sq = 0;
      for (int i = 0; i < n; i++) { const float* a = x + ((long)i * c + q) * s; float t = 0, u = 0;
        for (int j = 0; j < s; j++) { t += a[j]; u += a[j] * a[j]; } sm += t; sq += u; }
      m = sm / ((double)n * s); v = sq / ((double)n * s) - m * m;
    }
    float sc = w[q] / sqrt(v + 1e-5), sh = b[q] - m * sc;
    for (int i = 0; i < n; i++) { const float* a = x + ((long)i * c + q) * s; float* o = y + ((long)i * c + q) * s;
      for (int j = 0; j < s; j++) { float t = a[j] * sc + sh; o[j] = t > 0 ? t : 0; } }
  }
}
"""


def _build(src):
    d = tempfile.mkdtemp()
    c, so = os.path.join(d, "k.cpp"), os.path.join(d, "k.so")
    with open(c, "w") as f:
        f.write(src)
    subprocess.check_call(["g++", "-O3", "-march=native", "-fopenmp", "-fno-math-errno", "-fno-trapping-math",
                           "-fno-signed-zeros", "-fassociative-math", "-shared", "-fPIC", c, "-o", so])
    return ctypes.CDLL(so)


_lib = _build(SRC)


def P(t):
    return ctypes.c_void_p(t.data_ptr())


class ModelNew(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.bn = nn.BatchNorm2d(c)

    def forward(self, x):
        x = x.contiguous()
        n, c, h, w = x.shape
        y = torch.empty_like(x)
        b = self.bn
        _lib.k(P(x), P(b.weight), P(b.bias), P(b.running_mean), P(b.running_var), P(y), n, c, h * w, int(self.training))
        return y
