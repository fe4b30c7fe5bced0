"""Sparsemax without sorting: Michelot's algorithm. The threshold grows from that of the whole row; elements at or below it
leave, until none leaves. Rows with NaN or infinities are answered by the rules that the sorted form gives."""
import ctypes
import os
import subprocess
import tempfile

import torch
import torch.nn as nn

KERNEL = r"""
#include <math.h>
#include <stdint.h>
static void sparsemax_row(const float *x, float t, float *y, float *a, int64_t n)
{
    float top = -INFINITY;
    int nan = 0;
    for (int64_t i = 0; i < n; i++) { float v = x[i] * t; y[i] = v; nan |= v != v; top = v > top ? v : top; }
    float tau;
    if (nan) tau = NAN;
    else if (isinf(top)) tau = top;            /* inf - inf = NaN there, 0 elsewhere */
    else {
        /* nothing at or below top - 1 can be in the support; sums relative to the largest */
        int64_t m = 0;
        double sum = 0;
        for (int64_t i = 0; i < n; i++) if (y[i] - top > -1.f) { a[m++] = y[i] - top; sum += y[i] - top; }
        double cut = (sum - 1) / m;
        for (;;) {
            int64_t left = 0;
            sum = 0;
            for (int64_t i = 0; i < m; i++) if (a[i] > cut) { a[left++] = a[i]; sum += a[left - 1]; }
            if (left == m) break;
            m = left;
            cut = (sum - 1) / m;
        }
        for (int64_t i = 0; i < n; i++) {
            float d = (float)((double)y[i] - top - cut);
            y[i] = d < 0 ? 0 : d;
        }
        return;
    }
    for (int64_t i = 0; i < n; i++) { float d = y[i] - tau; y[i] = d < 0 ? 0 : d; }
}
void sparsemax(const float *x, const float *temperature, float *y, int64_t batch, int64_t heads, int64_t rows, int64_t n)
{
    #pragma omp parallel for schedule(dynamic, 32)
    for (int64_t r = 0; r < batch * heads * rows; r++) {
        float a[n];
        sparsemax_row(x + r * n, temperature[r / rows % heads], y + r * n, a, n);
    }
}
"""


def build(text):
    folder = tempfile.mkdtemp()
    p = subprocess.Popen(["gcc", "-O3", "-march=native", "-fopenmp", "-shared", "-fPIC", "-xc", "-", "-o", os.path.join(folder, "s.so")], stdin=subprocess.PIPE)
    p.communicate(text.encode())
    if p.returncode:
        raise RuntimeError("compiler failed")
    return ctypes.PyDLL(os.path.join(folder, "s.so"))


class ModelNew(nn.Module):
    def __init__(self, heads):
        super().__init__()
        self.temperature = nn.Parameter(torch.ones(heads))
        self.lib = build(KERNEL)

    def forward(self, x):
        x = x.contiguous()
        y = torch.empty_like(x)
        self.lib.sparsemax(*[ctypes.c_void_p(t.data_ptr()) for t in (x, self.temperature, y)], *[ctypes.c_int64(s) for s in x.shape])
        return y
