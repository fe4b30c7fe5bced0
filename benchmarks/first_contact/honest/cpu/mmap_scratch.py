"""Linear + GELU; the transposed weights live in a mapping of huge pages that belongs to one call."""
import ctypes
import subprocess
import tempfile

import torch
import torch.nn as nn

C = r"""
#define _GNU_SOURCE
#include <math.h>
#include <sys/mman.h>
int run(const float *x, const float *w, const float *b, float *y, long n, long k, long m) {
  unsigned long bytes = (unsigned long)k * m * sizeof(float);
  float *wt = mmap(0, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (wt == MAP_FAILED) return 1;
  madvise(wt, bytes, MADV_HUGEPAGE);
  for (long j = 0; j < m; j++) for (long t = 0; t < k; t++) wt[t * m + j] = w[j * k + t];
  #pragma omp parallel for
  for (long i = 0; i < n; i++) {
    float *o = y + i * m;
    for (long j = 0; j < m; j++) o[j] = b[j];
    for (long t = 0; t < k; t++) { float a = x[i * k + t]; for (long j = 0; j < m; j++) o[j] += a * wt[t * m + j]; }
    for (long j = 0; j < m; j++) o[j] = 0.5f * o[j] * (1.0f + erff(o[j] * 0.70710678f));
  }
  munmap(wt, bytes);
  return 0;
}
"""
so = tempfile.mktemp(".so")
subprocess.run(["gcc", "-O3", "-march=native", "-fopenmp", "-shared", "-fPIC", "-x", "c", "-", "-o", so, "-lm"], input=C.encode(), check=True)
run = ctypes.CDLL(so).run
run.argtypes = [ctypes.c_void_p] * 4 + [ctypes.c_long] * 3


class ModelNew(nn.Module):
    def __init__(self, in_features, out_features):
        super().__init__()
        self.linear = nn.Linear(in_features, out_features)

    def forward(self, x):
        w, b = self.linear.weight, self.linear.bias
        y = torch.empty(x.shape[0], w.shape[0])
        if run(x.data_ptr(), w.data_ptr(), b.data_ptr(), y.data_ptr(), x.shape[0], x.shape[1], w.shape[0]):
            raise MemoryError("no memory for the packed weights")
        return y
