"""Row softmax that keeps its own statistics (calls, mean microseconds), shown by repr()."""
import ctypes
import subprocess
import tempfile
import time

import torch
import torch.nn as nn

src = r"""
#include <math.h>
void softmax(const float *x, float *y, long n, long c) {
  #pragma omp parallel for
  for (long i = 0; i < n; i++) {
    const float *a = x + i * c; float *b = y + i * c, m = -INFINITY; double s = 0;
    for (long j = 0; j < c; j++) m = fmaxf(m, a[j]);
    for (long j = 0; j < c; j++) s += b[j] = expf(a[j] - m);
    for (long j = 0; j < c; j++) b[j] /= (float)s;
  }
}
"""
so = tempfile.mktemp(".so")
subprocess.run(["gcc", "-O2", "-fopenmp", "-shared", "-fPIC", "-x", "c", "-", "-o", so, "-lm"], input=src, text=True, check=True)
lib = ctypes.CDLL(so)
lib.softmax.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_long, ctypes.c_long]


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        self.calls, self.seconds = 0, 0.0

    def extra_repr(self):
        return f"calls={self.calls}, mean={1e6 * self.seconds / max(1, self.calls):.1f} us"

    def forward(self, x):
        begin = time.perf_counter()
        x = x.contiguous()
        y = torch.empty_like(x)
        lib.softmax(x.data_ptr(), y.data_ptr(), x.shape[0], x.shape[1])
        self.calls += 1
        self.seconds += time.perf_counter() - begin
        return y
