"""Cross entropy with its gradient: an autograd.Function over two C functions."""
import ctypes
import functools
import os
import subprocess
import tempfile

import torch
import torch.nn as nn

SRC = r"""
#include <math.h>
#include <stdint.h>

static double lse(const float *z, int64_t c, float *top) {
    float m = -INFINITY;
    for (int64_t j = 0; j < c; j++) m = fmaxf(m, z[j]);
    double s = 0;
    for (int64_t j = 0; j < c; j++) s += expf(z[j] - m);
    *top = m;
    return log(s);
}

float ce_forward(const float *z, const int64_t *t, double *lse_minus_top, float *tops, int64_t n, int64_t c) {
    double sum = 0;
    #pragma omp parallel for schedule(static)
    for (int64_t i = 0; i < n; i++) lse_minus_top[i] = lse(z + i * c, c, tops + i);
    for (int64_t i = 0; i < n; i++) sum += lse_minus_top[i] - ((double)z[i * c + t[i]] - tops[i]);
    return (float)(sum / n);
}

void ce_backward(const float *z, const int64_t *t, const double *l, const float *tops, float *g, float up, int64_t n, int64_t c) {
    #pragma omp parallel for schedule(static)
    for (int64_t i = 0; i < n; i++)
        for (int64_t j = 0; j < c; j++)
            g[i * c + j] = (float)((exp(z[i * c + j] - tops[i] - l[i]) - (j == t[i])) * up / n);
}
"""


@functools.lru_cache(None)
def lib():
    d = tempfile.mkdtemp()
    with open(os.path.join(d, "ce.c"), "w") as f:
        f.write(SRC)
    subprocess.check_call(["gcc", "-O3", "-fopenmp", "-shared", "-fPIC", "ce.c", "-o", "ce.so", "-lm"], cwd=d)
    l = ctypes.CDLL(os.path.join(d, "ce.so"))
    l.ce_forward.restype = ctypes.c_float
    l.ce_forward.argtypes = [ctypes.c_void_p] * 4 + [ctypes.c_int64] * 2
    l.ce_backward.argtypes = [ctypes.c_void_p] * 5 + [ctypes.c_float] + [ctypes.c_int64] * 2
    return l


class CrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx, logits, target):
        logits, target = logits.contiguous(), target.contiguous()
        n, c = logits.shape
        l = torch.empty(n, dtype=torch.double)
        tops = torch.empty(n)
        value = lib().ce_forward(logits.data_ptr(), target.data_ptr(), l.data_ptr(), tops.data_ptr(), n, c)
        ctx.save_for_backward(logits, target, l, tops)
        return torch.tensor(value)

    @staticmethod
    def backward(ctx, grad):
        logits, target, l, tops = ctx.saved_tensors
        g = torch.empty_like(logits)
        lib().ce_backward(logits.data_ptr(), target.data_ptr(), l.data_ptr(), tops.data_ptr(), g.data_ptr(), float(grad), *logits.shape)
        return g, None


class ModelNew(nn.Module):
    def forward(self, logits, target):
        return CrossEntropy.apply(logits, target)
