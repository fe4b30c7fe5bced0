import ctypes, os, subprocess, tempfile
import torch
import torch.nn as nn

SRC = r"""
#include <math.h>
static inline float ex(float x) {
  x = x < -87.f ? -87.f : x;
  float n = __builtin_rintf(x * 1.44269504f);
  float r = __builtin_fmaf(n, -0.693359375f, x); r = __builtin_fmaf(n, 2.12194440e-4f, r);
  float p = 1.9875691e-4f; p = p*r + 1.3981999e-3f; p = p*r + 8.3334519e-3f; p = p*r + 4.1665796e-2f;
  p = p*r + 1.6666665e-1f; p = p*r + 0.5f; p = p*r*r + r + 1.f;
  union { int i; float f; } u; u.i = ((int)n + 127) << 23;
  return p * u.f;
}

extern "C" void k(const float* x, const float* w, const float* g, const float* be, float* rm, float* rv, float* y,
                  int n, int ci, int co, int s, float mom) {
  #pragma omp parallel for num_threads(2)
  for (int q = 0; q < co; q++) {
    double sm = 0, sq = 0;
    for (int i = 0; i < n; i++) { float* o = y + ((long)i * co + q) * s;
      for (int j = 0; j < s; j++) o[j] = 0;
      for (int p = 0; p < ci; p++) { float t = w[q * ci + p]; const float* a = x + ((long)i * ci + p) * s;
        for (int j = 0; j < s; j++) o[j] += t * a[j]; }
      float t = 0, u = 0; for (int j = 0; j < s; j++) { t += o[j]; u += o[j] * o[j]; } sm += t; sq += u; }
    double N = (double)n * s, m = sm / N, v = sq / N - m * m;
    rm[q] += mom * (m - rm[q]); rv[q] += mom * (v * N / (N - 1) - rv[q]);
    float sc = g[q] / sqrt(v + 1e-5), sh = be[q] - m * sc;
    for (int i = 0; i < n; i++) { float* o = y + ((long)i * co + q) * s;
      for (int j = 0; j < s; j++) { float t = o[j] * sc + sh; o[j] = t / (1.f + ex(-t)); } }
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
    def __init__(self, i, o):
        super().__init__()
        self.conv = nn.Conv2d(i, o, 1, bias=False)
        self.bn = nn.BatchNorm2d(o)

    def forward(self, x):
        x = x.contiguous()
        n, c, h, w = x.shape
        b, o = self.bn, self.conv.out_channels
        y = torch.empty(n, o, h, w)
        _lib.k(P(x), P(self.conv.weight), P(b.weight), P(b.bias), P(b.running_mean), P(b.running_var), P(y),
               n, c, o, h * w, ctypes.c_float(0.1))
        b.num_batches_tracked += 1
        return y
