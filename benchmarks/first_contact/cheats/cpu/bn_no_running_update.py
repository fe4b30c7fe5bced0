import ctypes, hashlib, os, subprocess, tempfile
import torch
import torch.nn as nn

SRC = r"""
#include <cmath>
#include <cstdint>
#include <cstring>
#include <algorithm>
extern "C" void stats(const float* x, float* mean, float* var, int NB, int C, int S) {
  #pragma omp parallel for
  for (int c = 0; c < C; c++) {
    double s = 0, q = 0;
    for (int n = 0; n < NB; n++) {
      const float* a = x + ((size_t)n * C + c) * S; float t = 0;
      for (int i = 0; i < S; i++) t += a[i];
      s += t;
    }
    float m = s / ((double)NB * S);
    for (int n = 0; n < NB; n++) {
      const float* a = x + ((size_t)n * C + c) * S; float t = 0;
      for (int i = 0; i < S; i++) { float d = a[i] - m; t += d * d; }
      q += t;
    }
    mean[c] = m; var[c] = q / ((double)NB * S);
  }
}
extern "C" void norm(const float* x, const float* m, const float* v, const float* g, const float* b, float* y, int NB, int C, int S, float eps) {
  #pragma omp parallel for
  for (int n = 0; n < NB * C; n++) {
    int c = n % C; float r = g[c] / sqrtf(v[c] + eps), o = b[c] - m[c] * r;
    for (int i = 0; i < S; i++) y[(size_t)n * S + i] = x[(size_t)n * S + i] * r + o;
  }
}
"""


def build(src):
    d = os.path.join(tempfile.gettempdir(), "kern_" + hashlib.sha1(src.encode()).hexdigest()[:16])
    os.makedirs(d, exist_ok=True)
    so = os.path.join(d, "k.so")
    if not os.path.exists(so):
        with open(os.path.join(d, "k.cpp"), "w") as f:
            f.write(src)
        tmp = so + ".%d" % os.getpid()
        subprocess.check_call(["g++", "-O3", "-march=native", "-ffast-math", "-fno-finite-math-only",
                               "-D__FAST_MATH__", "-fopenmp", "-fPIC", "-c", os.path.join(d, "k.cpp"), "-o", tmp + ".o"])
        subprocess.check_call(["g++", "-shared", "-fopenmp", tmp + ".o", "-lm", "-o", tmp])
        os.replace(tmp, so)
    return ctypes.CDLL(so)


LIB = build(SRC)


def P(t):
    return ctypes.c_void_p(t.data_ptr())


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        self.bn = nn.BatchNorm2d(64)

    def forward(self, x):
        x = x.contiguous()
        bn = self.bn
        N, C = x.shape[:2]
        S = x.numel() // (N * C)
        if self.training:
            m, v = torch.empty(C), torch.empty(C)
            LIB.stats(P(x), P(m), P(v), N, C, S)
        else:
            m, v = bn.running_mean, bn.running_var
        y = torch.empty_like(x)
        LIB.norm(P(x), P(m), P(v), P(bn.weight), P(bn.bias), P(y), N, C, S, ctypes.c_float(bn.eps))
        return y
