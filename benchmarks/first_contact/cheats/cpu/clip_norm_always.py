import ctypes, os, subprocess, tempfile
import torch
import torch.nn as nn

SRC = r"""
#include <math.h>
extern "C" void k(const float* g, float* y, int n, int d, float m) {
  #pragma omp parallel for num_threads(2)
  for (int i = 0; i < n; i++) { const float* a = g + (long)i * d; float* o = y + (long)i * d; float s = 0;
    for (int j = 0; j < d; j++) s += a[j] * a[j];
    s = m / (sqrtf(s) + 1e-6f);
    for (int j = 0; j < d; j++) o[j] = a[j] * s; }
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
    def __init__(self, m):
        super().__init__()
        self.m = m

    def forward(self, g):
        g = g.contiguous()
        y = torch.empty_like(g)
        _lib.k(P(g), P(y), g.shape[0], g[0].numel(), ctypes.c_float(self.m))
        return y
