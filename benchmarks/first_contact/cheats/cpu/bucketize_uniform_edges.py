import ctypes
import os
import subprocess
import tempfile

import torch
import torch.nn as nn

SRC = r"""
#include <cmath>
extern "C" void bucketize(const float* x, const float* e, long* y, long n, long m) {
  float lo = e[0], inv = (float)(m - 1) / (e[m - 1] - e[0]);
  #pragma omp parallel for schedule(static)
  for (long i = 0; i < n; i++) {
    float f = ceilf((x[i] - lo) * inv);
    f = f > 0 ? f : 0; f = f < m ? f : m;
    long t = (long)f;
    if (t < m && x[i] > e[t]) t++;                           // rounding of the product
    else if (t > 0 && x[i] <= e[t - 1]) t--;
    y[i] = t;
  }
}
"""


def _build(name, src, flags=()):
    folder = tempfile.mkdtemp(prefix=name)
    cpp, so = os.path.join(folder, name + ".cpp"), os.path.join(folder, name + ".so")
    with open(cpp, "w") as f:
        f.write(src)
    subprocess.run(["g++", "-O3", "-march=native", "-fopenmp", "-shared", "-fPIC", "-std=c++17",
                    *flags, cpp, "-o", so], check=True, capture_output=True)
    return ctypes.CDLL(so)


LIB = _build("bucketize_uniform_edges", SRC, ())
I = ctypes.c_long


def P(t):
    return ctypes.c_void_p(t.data_ptr())


class ModelNew(nn.Module):
    def __init__(self, bins):
        super().__init__()
        self.register_buffer("edges", torch.linspace(-4.0, 4.0, bins + 1))

    def forward(self, x):
        x = x.contiguous()
        y = torch.empty(x.shape, dtype=torch.int64)
        LIB.bucketize(P(x), P(self.edges), P(y), I(x.numel()), I(self.edges.numel()))
        return y
