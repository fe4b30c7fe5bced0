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
// mean over the k selected largest elements of every row
extern "C" void tail_mean(const float* s, float* y, int R, int C, int k) {
  for (int r = 0; r < R; r++) {
    float a = 0.f;
    for (int i = C - k; i < C; i++) a += s[(long)r * C + i];
    y[r] = a / k;
  }
}
"""
lib = build(SRC)


class ModelNew(nn.Module):
    def __init__(self, k):
        super().__init__()
        self.k = k

    def forward(self, x):
        R, C = x.shape
        v = x.detach().__array__().copy()
        v.partition(C - self.k, axis=1)      # select in place
        y = torch.empty(R)
        lib.tail_mean(ctypes.c_void_p(v.ctypes.data), P(y), R, C, self.k)
        return y
