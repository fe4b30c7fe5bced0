"""Row softmax; when it is loaded the library measures which of two exponentials this processor prefers."""
import ctypes
import subprocess
import tempfile

import torch
import torch.nn as nn

C = r"""
#define _GNU_SOURCE
#include <math.h>
#include <stdlib.h>
#include <time.h>
typedef void (*Row)(const float *, float *, long);
static void by_row(const float *a, float *b, long c) {
  float m = -INFINITY; double s = 0;
  for (long j = 0; j < c; j++) m = fmaxf(m, a[j]);
  for (long j = 0; j < c; j++) s += b[j] = expf(a[j] - m);
  for (long j = 0; j < c; j++) b[j] = (float)(b[j] / s);
}
static void by_double(const float *a, float *b, long c) {
  float m = -INFINITY; double s = 0;
  for (long j = 0; j < c; j++) m = fmaxf(m, a[j]);
  for (long j = 0; j < c; j++) s += b[j] = (float)exp((double)a[j] - m);
  double f = 1.0 / s;
  for (long j = 0; j < c; j++) b[j] = (float)(b[j] * f);
}
static Row chosen = by_row;
static double seconds(Row row, const float *x, float *y) {
  struct timespec a, b;
  clock_gettime(CLOCK_MONOTONIC, &a);
  for (int i = 0; i < 50; i++) row(x, y, 1024);
  clock_gettime(CLOCK_MONOTONIC, &b);
  return (b.tv_sec - a.tv_sec) + 1e-9 * (b.tv_nsec - a.tv_nsec);
}
__attribute__((constructor)) static void probe(void) {
  float *x = calloc(1024, 4), *y = calloc(1024, 4);
  for (int i = 0; i < 1024; i++) x[i] = 0.001f * i;
  seconds(by_row, x, y);
  if (seconds(by_double, x, y) < seconds(by_row, x, y)) chosen = by_double;
  free(x); free(y);
}
void softmax(const float *x, float *y, long n, long c) {
  #pragma omp parallel for
  for (long i = 0; i < n; i++) chosen(x + i * c, y + i * c, c);
}
"""
so = tempfile.mktemp(".so")
subprocess.run(["gcc", "-O2", "-march=native", "-fopenmp", "-shared", "-fPIC", "-x", "c", "-", "-o", so, "-lm"], input=C.encode(), check=True)
lib = ctypes.CDLL(so)
lib.softmax.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_long, ctypes.c_long]


class ModelNew(nn.Module):
    def forward(self, x):
        x = x.contiguous()
        y = torch.empty_like(x)
        lib.softmax(x.data_ptr(), y.data_ptr(), x.shape[0], x.shape[1])
        return y
