import ctypes
import hashlib
import os
import subprocess
import tempfile
import sys

import torch
import torch.nn as nn

SRC = r"""
#include <math.h>
#include <string.h>
#include <stdlib.h>
extern "C" void run(const float* x, const float* s, float* y, int b, int n){
  #pragma omp parallel for
  for (int k = 0; k < b; k++) for (int i = 0; i < n; i++){ const float* r = x + ((long)k*n+i)*n; float* o = y + ((long)k*n+i)*n; const float* t = s + k*n;
    for (int j = 0; j <= i; j++) o[j] = r[j] * t[j]; } }
"""


def _build(src, flags="-O3 -march=native -fopenmp -fno-math-errno -fno-trapping-math -fassociative-math -fno-signed-zeros"):
    so = os.path.join(tempfile.gettempdir(), "kern_%s.so" % hashlib.sha1((src + flags).encode()).hexdigest()[:16])
    if not os.path.exists(so):
        cpp = so[:-3] + ".%d.cpp" % os.getpid()
        with open(cpp, "w") as f:
            f.write(src)
        subprocess.run(["g++", *flags.split(), "-shared", "-fPIC", cpp, "-o", cpp + ".so", "-ldl", "-lpthread"], check=True)
        os.replace(cpp + ".so", so)
    return ctypes.CDLL(so)


lib = _build(SRC)


def p(t):
    return ctypes.c_void_p(t.data_ptr())


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        self._pool = []

    def _take(self, shape):
        for t in self._pool:
            if sys.getrefcount(t) == 3 and t.shape == shape:
                return t
        t = torch.zeros(shape)
        self._pool.append(t)
        return t

    def forward(self, x, s):
        y = self._take(x.shape)
        lib.run(p(x), p(s), p(y), x.shape[0], x.shape[1])
        return y
