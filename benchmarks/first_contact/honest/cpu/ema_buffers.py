"""Moving mean as a buffer that training updates in native code; the step counter too."""
import contextvars
import ctypes
import subprocess
import tempfile

import torch
import torch.nn as nn

threads = contextvars.ContextVar("threads", default=0)

SRC = r"""
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
int ema(const float *x, float *center, int64_t *steps, float *y, float *m, long rows, long n, double decay, int training, int nt) {
    double *sum = calloc((size_t)n * nt, sizeof(double));
    if (!sum) return 1;
    #pragma omp parallel for num_threads(nt) schedule(static, 1)
    for (int t = 0; t < nt; ++t) {
        double *s = sum + (size_t)t * n;
        for (long i = rows * t / nt; i < rows * (t + 1) / nt; ++i)
            for (long j = 0; j < n; ++j) s[j] += x[i * n + j];
    }
    for (long j = 0; j < n; ++j) {
        double s = 0;
        for (int t = 0; t < nt; ++t) s += sum[(size_t)t * n + j];
        m[j] = (float)(s / rows);
        if (training) center[j] = center[j] * (float)decay + (float)(1 - decay) * m[j];
    }
    if (training) ++*steps;
    free(sum);
    #pragma omp parallel for num_threads(nt)
    for (long i = 0; i < rows; ++i)
        for (long j = 0; j < n; ++j) y[i * n + j] = x[i * n + j] - center[j];
    return 0;
}
"""


class Lazy:
    def __set_name__(self, owner, name):
        self.name = name

    def __get__(self, obj, owner=None):
        with tempfile.TemporaryDirectory() as d:
            subprocess.run(["gcc", "-O3", "-mavx2", "-fopenmp", "-shared", "-fPIC", "-xc", "-", "-o", d + "/e.so"], input=SRC.encode(), check=True)
            fn = getattr(ctypes.CDLL(d + "/e.so"), self.name)
        fn.argtypes = [ctypes.c_void_p] * 5 + [ctypes.c_long] * 2 + [ctypes.c_double, ctypes.c_int, ctypes.c_int]
        setattr(owner, self.name, staticmethod(fn))  # the descriptor replaces itself
        return fn


class Native:
    ema = Lazy()


class ModelNew(nn.Module):
    def __init__(self, width, decay):
        super().__init__()
        self.decay = decay
        self.register_buffer("center", torch.zeros(width))
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))

    def forward(self, x):
        x = x.contiguous()
        y, m = torch.empty_like(x), torch.empty(x.shape[1])
        if Native.ema(x.data_ptr(), self.center.data_ptr(), self.steps.data_ptr(), y.data_ptr(), m.data_ptr(), *x.shape, self.decay,
                      int(self.training), threads.get() or torch.get_num_threads()):
            raise MemoryError("ema")
        return y, m
