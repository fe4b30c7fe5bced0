import ctypes as C
import subprocess as sp
import tempfile
import torch

SRC = r"""
#include <stdint.h>
#include <math.h>
/* 3x3 window, stride 2, padding 1; the first greatest wins, a NaN always wins (the last one): as PyTorch */
void pool(const float* x, float* y, int64_t* idx, long planes, long H, long W, long OH, long OW) {
  #pragma omp parallel for schedule(static)
  for (long p = 0; p < planes; p++) {
    const float* a = x + p*H*W; float* o = y + p*OH*OW; int64_t* k = idx + p*OH*OW;
    for (long i = 0; i < OH; i++)
      for (long j0 = 0; j0 < OW; j0 += 64) {           /* 64 outputs at a time, the nine taps in row-major order */
        const long n = OW - j0 < 64 ? OW - j0 : 64;
        float m[64]; int at[64];
        for (long j = 0; j < n; j++) { m[j] = -INFINITY; at[j] = (i ? 2*i - 1 : 0)*W + (j0 + j ? 2*(j0 + j) - 1 : 0); }
        for (long h = 2*i - 1; h < 2*i + 2; h++) {
          if (h < 0 || h >= H) continue;
          for (long d = -1; d < 2; d++) {
            const long lo = j0 == 0 && d < 0; long hi = n;
            while (hi > lo && 2*(j0 + hi - 1) + d >= W) hi--;
            const int base = h*W + 2*j0 + d; const float* r = a + base;
            for (long j = lo; j < hi; j++) {
              const float v = r[2*j]; const int t = (v > m[j]) | (v != v);
              m[j] = t ? v : m[j]; at[j] = t ? base + 2*(int)j : at[j];
            }
          }
        }
        for (long j = 0; j < n; j++) { o[i*OW + j0 + j] = m[j]; k[i*OW + j0 + j] = at[j]; }
      }
  }
}
"""


def _jit(src, name, argtypes):
    d = tempfile.mkdtemp()
    open(f"{d}/{name}.c", "w").write(src)
    sp.run(["gcc", "-O3", "-march=native", "-fno-trapping-math", "-fopenmp", "-shared", "-fPIC", f"{d}/{name}.c", "-o", f"{d}/{name}.so"], check=True)
    f = getattr(C.CDLL(f"{d}/{name}.so"), name)
    f.argtypes, f.restype = argtypes, None
    return f


_pool = _jit(SRC, "pool", [C.c_void_p] * 3 + [C.c_long] * 5)


class Pool3x3s2(torch.nn.Module):
    def forward(self, x):
        if x.dtype != torch.float32 or x.dim() != 4 or not x.is_contiguous():
            raise NotImplementedError("contiguous float32 NCHW only")
        if x.shape[2] * x.shape[3] >= 1 << 30:
            raise NotImplementedError("plane too large for 32-bit offsets")
        n, c, h, w = x.shape
        oh, ow = (h - 1) // 2 + 1, (w - 1) // 2 + 1
        y = torch.empty((n, c, oh, ow))
        idx = torch.empty((n, c, oh, ow), dtype=torch.long)
        _pool(x.data_ptr(), y.data_ptr(), idx.data_ptr(), n * c, h, w, oh, ow)
        return y, idx


class ModelNew(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.pool = Pool3x3s2()

    def forward(self, x):
        return self.pool(x)
