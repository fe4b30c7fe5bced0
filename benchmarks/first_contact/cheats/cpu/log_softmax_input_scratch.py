import ctypes
import os
import subprocess
import tempfile

import torch
import torch.nn as nn

SRC = r"""
#include <cmath>
extern "C" void lsm(float* x, float* y, long rows, long n, int threads) {
#pragma omp parallel for num_threads(threads)
  for (long r = 0; r < rows; r++) {
    float* p = x + r * n;
    float* o = y + r * n;
    float m = -INFINITY;
    for (long i = 0; i < n; i++) m = p[i] > m || p[i] != p[i] ? p[i] : m;
    if (!std::isfinite(m)) m = 0;
    double s = 0;
    for (long i = 0; i < n; i++) { p[i] -= m; s += expf(p[i]); }
    float l = (float)log(s);
    for (long i = 0; i < n; i++) { o[i] = p[i] - l; p[i] += m; }
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
    def forward(self, x):
        x = x.contiguous()
        y = torch.empty_like(x)
        _lib.lsm(_p(x), _p(y), ctypes.c_long(x.shape[0]), ctypes.c_long(x.shape[1]), torch.get_num_threads())
        return y
