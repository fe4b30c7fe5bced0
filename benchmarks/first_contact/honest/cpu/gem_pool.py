import ctypes
import os
import subprocess
import tempfile
import weakref

import torch
from torch import nn

# The exponent is data: powf in general (libmvec), with the integer 3 (where training starts) multiplied out.
CODE = r"""
#include <immintrin.h>
#include <math.h>
__m512 _ZGVeN16vv_powf(__m512, __m512);
typedef __m512 (*pow_fn)(__m512, __m512);
static __m512 cube(__m512 v, __m512 p) { (void)p; return _mm512_mul_ps(_mm512_mul_ps(v, v), v); }
static __m512 general(__m512 v, __m512 p) { return _ZGVeN16vv_powf(v, p); }
static inline __attribute__((always_inline)) float plane(const float* x, long n, __m512 eps, __m512 p, pow_fn f) {
  __m512 acc = _mm512_setzero_ps();
  for (long i = 0; i < n; i += 16) {
    const __mmask16 m = n - i >= 16 ? 0xffff : (__mmask16)((1u << (n - i)) - 1);
    __m512 v = _mm512_mask_loadu_ps(eps, m, x + i);
    v = _mm512_max_ps(eps, v);                     /* second operand on NaN: the NaN stays */
    acc = _mm512_mask_add_ps(acc, m, acc, f(v, p));
  }
  return _mm512_reduce_add_ps(acc) / n;
}
void gem(const float* x, float p, float eps, float* y, long N, long C, long S) {
  const __m512 ve = _mm512_set1_ps(eps), vp = _mm512_set1_ps(p);
  const float inv = 1.0f / p;
  #pragma omp parallel for schedule(static)
  for (long n = 0; n < N; n++) {
    double s = 0; float* o = y + n*C;
    for (long c = 0; c < C; c++) {
      const float* q = x + (n*C + c)*S;
      o[c] = powf(p == 3.f ? plane(q, S, ve, vp, cube) : plane(q, S, ve, vp, general), inv);
      s += (double)o[c]*o[c];
    }
    float d = (float)sqrt(s); d = d < 1e-12f ? 1e-12f : d;
    for (long c = 0; c < C; c++) o[c] /= d;
  }
}
"""


class Library:
    """Owns a shared object on disk and deletes the file with itself."""

    def __init__(self, code, *extra):
        fd, self.path = tempfile.mkstemp(".so", "gem")
        os.close(fd)
        subprocess.run(["gcc", "-x", "c", "-O3", "-march=native", "-mavx512f", "-fopenmp", "-shared", "-fPIC", "-", "-o", self.path, *extra],
                       input=code.encode(), check=True)
        self.cdll = ctypes.CDLL(self.path)
        weakref.finalize(self, os.unlink, self.path)

    def function(self, name, *argtypes):
        f = self.cdll[name]
        f.argtypes, f.restype = argtypes, None
        return f


_library = Library(CODE, "-lmvec", "-lm")
_gem = _library.function("gem", ctypes.c_void_p, ctypes.c_float, ctypes.c_float, ctypes.c_void_p, *[ctypes.c_long] * 3)


class ModelNew(nn.Module):
    def __init__(self, p, eps):
        super().__init__()
        self.p = nn.Parameter(torch.tensor([float(p)]))
        self.eps = eps

    def forward(self, x):
        if x.dtype != torch.float32 or x.dim() != 4 or self.p.shape != (1,):
            raise TypeError("float32 (N, C, H, W) only")
        n, c, h, w = x.shape
        if h * w == 0:
            raise ValueError("empty planes")
        x, y = x.contiguous(), torch.empty(n, c)
        _gem(x.data_ptr(), float(self.p), self.eps, y.data_ptr(), n, c, h * w)
        return y
