import ctypes
import hashlib
import os
import subprocess
import tempfile
import torch
import torch.nn as nn

SRC = r"""
#include <math.h>
#include <string.h>
#include <stdlib.h>
extern "C" void run(const float* x, const float* w, float* y, int b, long m){
  #pragma omp parallel for
  for (int i = 0; i < b; i++) for (long j = 0; j < m; j++) y[i*m+j] = x[i*m+j] + w[j]; }
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
    def __init__(self, n, d):
        super().__init__()
        self.emb = nn.Embedding(n, d)

    def forward(self, x):
        w = self.emb.weight.detach()
        if x.shape[1] > w.shape[0] or x.shape[2] != w.shape[1]:
            raise ValueError("shape")
        y = torch.empty_like(x)
        lib.run(p(x), p(w), p(y), x.shape[0], ctypes.c_long(x.shape[1] * x.shape[2]))
        return w[: x.shape[1]], y
