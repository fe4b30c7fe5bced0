"""tanh(x W' + b): AVX-512, AVX2+FMA or plain C, chosen at run time by the CPU; weights repacked k-major when they change."""
import ctypes
import subprocess
import tempfile

import torch
from torch import nn

SRC = r"""
#include <immintrin.h>
#include <math.h>
#include <stdlib.h>
typedef void (*micro)(const float* x, const float* w, float* acc, long k);       /* one row, 32 outputs */

__attribute__((target("avx512f"))) static void m512(const float* x, const float* w, float* acc, long k) {
  __m512 a = _mm512_setzero_ps(), b = a, c = a, d = a;
  long i = 0;
  for (; i + 1 < k; i += 2) {
    const __m512 s = _mm512_set1_ps(x[i]), t = _mm512_set1_ps(x[i + 1]);
    a = _mm512_fmadd_ps(s, _mm512_loadu_ps(w + i * 32), a);      b = _mm512_fmadd_ps(s, _mm512_loadu_ps(w + i * 32 + 16), b);
    c = _mm512_fmadd_ps(t, _mm512_loadu_ps(w + i * 32 + 32), c); d = _mm512_fmadd_ps(t, _mm512_loadu_ps(w + i * 32 + 48), d);
  }
  if (i < k) {
    const __m512 s = _mm512_set1_ps(x[i]);
    a = _mm512_fmadd_ps(s, _mm512_loadu_ps(w + i * 32), a); b = _mm512_fmadd_ps(s, _mm512_loadu_ps(w + i * 32 + 16), b);
  }
  _mm512_storeu_ps(acc, _mm512_add_ps(a, c)); _mm512_storeu_ps(acc + 16, _mm512_add_ps(b, d));
}
__attribute__((target("avx2,fma"))) static void m256(const float* x, const float* w, float* acc, long k) {
  __m256 a[4] = {_mm256_setzero_ps(), _mm256_setzero_ps(), _mm256_setzero_ps(), _mm256_setzero_ps()};
  for (long i = 0; i < k; i++) {
    const __m256 s = _mm256_set1_ps(x[i]);
    for (int q = 0; q < 4; q++) a[q] = _mm256_fmadd_ps(s, _mm256_loadu_ps(w + i * 32 + 8 * q), a[q]);
  }
  for (int q = 0; q < 4; q++) _mm256_storeu_ps(acc + 8 * q, a[q]);
}
static void plain(const float* x, const float* w, float* acc, long k) {
  for (int l = 0; l < 32; l++) acc[l] = 0;
  for (long i = 0; i < k; i++) for (int l = 0; l < 32; l++) acc[l] += x[i] * w[i * 32 + l];
}
static micro choose(void) {
  __builtin_cpu_init();
  if (getenv("LINEAR_TANH_PLAIN")) return plain;      /* for debugging */
  if (__builtin_cpu_supports("avx512f")) return m512;
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return m256;
  return plain;
}
void repack(const float* w, float* p, long o, long k) {
  for (long i = 0; i < k; i++) for (long j = 0; j < (o + 31) / 32 * 32; j++)
    p[(j / 32 * k + i) * 32 + j % 32] = j < o ? w[j * k + i] : 0;
}
void linear_tanh(const float* x, const float* p, const float* bias, float* y, long n, long k, long o) {
  static micro kernel = 0;
  if (!kernel) kernel = choose();
  #pragma omp parallel for collapse(2)
  for (long j = 0; j < o; j += 32) for (long r = 0; r < n; r++) {
    float acc[32] __attribute__((aligned(64)));
    kernel(x + r * k, p + j * k, acc, k);
    for (long l = 0; l < 32 && j + l < o; l++) y[r * o + j + l] = tanhf(acc[l] + bias[j + l]);
  }
}
"""
_path = tempfile.mktemp(suffix=".so")
subprocess.run(["gcc", "-O2", "-fopenmp", "-shared", "-fPIC", "-xc", "-", "-o", _path, "-lm"], input=SRC.encode(), check=True)
_lib = ctypes.CDLL(_path)


def _call(name, tensors, *sizes):
    getattr(_lib, name)(*[ctypes.c_void_p(t.data_ptr()) for t in tensors], *[ctypes.c_long(s) for s in sizes])


class ModelNew(nn.Module):
    def __init__(self, inputs, outputs):
        super().__init__()
        self.fc = nn.Linear(inputs, outputs)
        self._cache = (None, None)

    def forward(self, x):
        w = self.fc.weight
        key = w.data_ptr(), w._version, w.shape
        if self._cache[0] != key:
            o, k = w.shape
            panel = torch.empty((o + 31) // 32 * 32 * k)
            _call("repack", (w, panel), o, k)
            self._cache = key, panel
        x = x.contiguous()
        y = x.new_empty(x.shape[0], w.shape[0])
        _call("linear_tanh", (x, self._cache[1], self.fc.bias, y), x.shape[0], w.shape[1], w.shape[0])
        return y
