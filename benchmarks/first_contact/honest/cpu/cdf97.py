import ctypes
import os
import subprocess
import tempfile

import torch
import torch.nn as nn

# Lifting in double precision in a scratch row per thread, the way a numerics person would port it from C.
_SRC = r"""
#include <stdlib.h>
static long level(double* restrict e, double* restrict o, long h, const double* L) {
    for (int s = 0; s < 4; s += 2) {
        const double p = L[s], u = L[s + 1];
        for (long i = 0; i + 1 < h; i++) o[i] += p * (e[i] + e[i + 1]);
        o[h - 1] += p * (e[h - 1] + e[h - 1]);
        e[0] += u * (o[0] + o[0]);
        for (long i = 1; i < h; i++) e[i] += u * (o[i] + o[i - 1]);
    }
    return h;
}
void cdf97(const float* x, const float* lift, const float* scale, float* a, float* d1, float* d2, float* d3, long rows, long n) {
    double L[4]; for (int i = 0; i < 4; i++) L[i] = lift[i];
    const double z = *scale;
    float* d[3] = {d1, d2, d3};
    #pragma omp parallel
    {
        double* w = malloc(sizeof(double) * n * 2);
        #pragma omp for schedule(static)
        for (long r = 0; r < rows; r++) {
            double *src = w, *e = w + n, *o = w + n + n / 2;
            for (long i = 0; i < n; i++) src[i] = x[r * n + i];
            long len = n;
            for (int k = 0; k < 3; k++) {
                long h = len / 2;
                for (long i = 0; i < h; i++) { e[i] = src[2 * i]; o[i] = src[2 * i + 1]; }
                level(e, o, h, L);
                for (long i = 0; i < h; i++) { src[i] = e[i] * z; d[k][r * h + i] = (float)(o[i] / z); }
                len = h;
            }
            for (long i = 0; i < len; i++) a[r * len + i] = (float)src[i];
        }
        free(w);
    }
}
"""


class _Native:
    fn = None

    @classmethod
    def get(cls):
        if cls.fn is None:
            d = tempfile.mkdtemp()
            with open(os.path.join(d, "w.c"), "w") as f:
                f.write(_SRC)
            subprocess.check_call(["gcc", "-O3", "-march=native", "-fopenmp", "-shared", "-fPIC", d + "/w.c", "-o", d + "/w.so"])
            cls.fn = ctypes.CDLL(d + "/w.so").cdf97
            cls.fn.argtypes = [ctypes.c_void_p] * 7 + [ctypes.c_long] * 2
            cls.fn.restype = None
        return cls.fn


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("lift", torch.tensor([-1.586134342, -0.05298011854, 0.8829110762, 0.4435068522]))
        self.register_buffer("scale", torch.tensor(1.149604398))
        self.native = _Native.get()

    def forward(self, x):
        n = x.shape[-1]
        if n % 8 or x.dtype != torch.float32:
            raise ValueError("rows of float32, a multiple of 8 long")
        x = x.contiguous()
        head = x.shape[:-1]
        a, d1, d2, d3 = (x.new_empty(*head, n // k) for k in (8, 2, 4, 8))
        lift = self.lift.contiguous()
        self.native(x.data_ptr(), lift.data_ptr(), self.scale.data_ptr(), a.data_ptr(), d1.data_ptr(), d2.data_ptr(), d3.data_ptr(),
                    x.numel() // n, n)
        return a, (d1, d2, d3)
