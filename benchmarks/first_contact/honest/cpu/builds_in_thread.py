"""The largest value of each row and its place; the compiler runs in a thread while the module is imported."""
import ctypes
import subprocess
import tempfile
import threading

import torch
import torch.nn as nn

C = r"""
void row_max(const float *x, float *v, long *at, long n, long c) {
  #pragma omp parallel for
  for (long i = 0; i < n; i++) {
    const float *a = x + i * c; float m = a[0]; long p = 0;
    for (long j = 1; j < c && m == m; j++) if (a[j] > m || a[j] != a[j]) { m = a[j]; p = j; }
    v[i] = m; at[i] = p;
  }
}
"""


class Built(threading.Thread):
    def __init__(self):
        super().__init__(name="compiler")
        self.so = tempfile.mktemp(".so")
        self.start()

    def run(self):
        subprocess.run(["gcc", "-O3", "-march=native", "-fopenmp", "-shared", "-fPIC", "-x", "c", "-", "-o", self.so], input=C.encode(), check=True)

    def library(self):
        self.join()
        lib = ctypes.CDLL(self.so)
        lib.row_max.argtypes = [ctypes.c_void_p] * 3 + [ctypes.c_long] * 2
        return lib


_built = Built()


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        self.lib = _built.library()

    def forward(self, x):
        x = x.contiguous()
        n, c = x.shape
        values, places = torch.empty(n), torch.empty(n, dtype=torch.int64)
        self.lib.row_max(x.data_ptr(), values.data_ptr(), places.data_ptr(), n, c)
        return values, places
