"""Row softmax with recycled outputs: a buffer is used again as soon as its tensor object has gone."""
import ctypes
import subprocess
import sys
import tempfile

import torch
import torch.nn as nn

SRC = r"""
#include <math.h>
void softmax(const float* x, float* y, long n, long c) {
  #pragma omp parallel for
  for (long r = 0; r < n; r++) {
    const float* a = x + r * c; float* b = y + r * c; float m = a[0]; double s = 0;
    for (long i = 1; i < c; i++) if (a[i] > m) m = a[i];
    for (long i = 0; i < c; i++) s += b[i] = expf(a[i] - m);
    float f = (float)(1.0 / s);
    for (long i = 0; i < c; i++) b[i] *= f;
  }
}
"""
_so = tempfile.mktemp(".so")
subprocess.run(["gcc", "-O3", "-march=native", "-fopenmp", "-shared", "-fPIC", "-x", "c", "-", "-o", _so, "-lm"], input=SRC.encode(), check=True)
_lib = ctypes.CDLL(_so)
_lib.softmax.argtypes = [ctypes.c_void_p] * 2 + [ctypes.c_long] * 2


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        self.pool = []

    def _output(self, x):
        for one in self.pool:
            if sys.getrefcount(one) == 3 and one.shape == x.shape:  # the pool, this loop, the argument: nobody else
                return one
        self.pool.append(torch.empty_like(x))
        return self.pool[-1]

    def forward(self, x):
        x = x.contiguous()
        y = self._output(x)
        _lib.softmax(x.data_ptr(), y.data_ptr(), x.shape[0], x.shape[1])
        return y
