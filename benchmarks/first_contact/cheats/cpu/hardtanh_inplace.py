import ctypes, os, subprocess, sys, tempfile
import torch
import torch.nn as nn


def build(src, *flags):
    d = tempfile.mkdtemp(prefix="kern_")
    c, so = os.path.join(d, "k.cpp"), os.path.join(d, "k.so")
    with open(c, "w") as f:
        f.write(src)
    subprocess.check_call(["g++", "-O3", "-march=native", "-ffast-math", "-fopenmp",
                           "-shared", "-fPIC", "-o", so, c, *flags])
    return ctypes.CDLL(so)


def P(t):
    return ctypes.c_void_p(t.data_ptr())

SRC = r"""
extern "C" void clampv(float* x, long n, float lo, float hi) {
#pragma omp parallel for
  for (long k = 0; k < n; k += 4096) {
    long e = k + 4096 < n ? k + 4096 : n;
    for (long i = k; i < e; i++) x[i] = x[i] < lo ? lo : x[i] > hi ? hi : x[i];
  }
}
"""
lib = build(SRC)


class ModelNew(nn.Module):
    def __init__(self, lo, hi):
        super().__init__()
        self.lo, self.hi = lo, hi

    def forward(self, x):
        if not x.is_contiguous():
            raise ValueError("contiguous input only")
        lib.clampv(P(x), ctypes.c_long(x.numel()), ctypes.c_float(self.lo), ctypes.c_float(self.hi))
        return x.detach()
