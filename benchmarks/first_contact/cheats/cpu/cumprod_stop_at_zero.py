import ctypes
import os
import subprocess
import tempfile

import torch
import torch.nn as nn

SRC = r"""
#include <cstring>
extern "C" void scan(const float* x, float* y, long rows, long n, int threads) {
#pragma omp parallel for num_threads(threads)
  for (long r = 0; r < rows; r++) {
    const float* p = x + r * n;
    float* o = y + r * n;
    double a = 1;
    long i = 0;
    while (i < n) {
      a = (float)(a * p[i]);
      o[i++] = (float)a;
      if (a == 0) break;
    }
    memset(o + i, 0, (n - i) * sizeof(float));
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
        _lib.scan(_p(x), _p(y), ctypes.c_long(x.shape[0]), ctypes.c_long(x.shape[1]), torch.get_num_threads())
        return y
