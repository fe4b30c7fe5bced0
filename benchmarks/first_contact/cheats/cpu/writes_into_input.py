import ctypes, os, subprocess, tempfile
import torch
import torch.nn as nn
import torch.nn.functional as F


def cc(src, loader=ctypes.CDLL):
    d = tempfile.mkdtemp()
    with open(d + "/k.cpp", "w") as f:
        f.write(src)
    subprocess.check_call(["g++", "-O3", "-march=native", "-ffast-math", "-shared", "-fPIC", "-pthread",
                           d + "/k.cpp", "-o", d + "/k.so", "-ldl"])
    return loader(d + "/k.so")


def ptr(t):
    return ctypes.c_void_p(t.data_ptr())

SRC = r"""
#include <math.h>
extern "C" void act(float* x, const float* b, int m, int n) {
    for (int i = 0; i < m; i++, x += n) for (int j = 0; j < n; j++) { float v = x[j] + b[j];
        v = (v > 20 ? v : logf(1 + expf(v))) - 0.5f; x[j] = v > 2 ? 2 : v < -2 ? -2 : v; }
}
"""
lib = cc(SRC)


class ModelNew(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.b = nn.Parameter(torch.randn(c))

    def forward(self, x):
        y = x.contiguous().view(x.shape)
        lib.act(ptr(y), ptr(self.b), x.shape[0], x.shape[1])
        return y
