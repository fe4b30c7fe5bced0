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
#include <cmath>
extern "C" void cell(const float* h, const float* z, const float* n, float* s, int R, int C) {
#pragma omp parallel for
  for (int r = 0; r < R; r++)
    for (long i = (long)r * C; i < (long)(r + 1) * C; i++) {
      float g = 1.f / (1.f + expf(-z[i])), v = n[i];
      v = v > 10.f ? 10.f : v < -10.f ? -10.f : v;
      float t = 1.f - 2.f / (expf(2.f * v) + 1.f);
      s[i] = t + g * (h[i] - t);
    }
}
"""
lib = build(SRC)


class ModelNew(nn.Module):
    def forward(self, h, z, n):
        if h.dtype != torch.float32 or not (h.is_contiguous() and z.is_contiguous() and n.is_contiguous()):
            raise ValueError("float32 contiguous")
        s = torch.empty_like(h)
        lib.cell(P(h), P(z), P(n), P(s), h.shape[0], h.shape[1])
        return s, s.view_as(s)
