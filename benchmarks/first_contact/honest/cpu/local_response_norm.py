import ctypes
import subprocess
import tempfile
from enum import IntEnum
from pathlib import Path

import torch


class Power(IntEnum):
    """How x ** beta is taken: by square roots, or by powf."""
    THREE_QUARTERS = 0
    HALF = 1
    ANY = 2

    @classmethod
    def of(cls, beta):
        return {0.75: cls.THREE_QUARTERS, 0.5: cls.HALF}.get(beta, cls.ANY)


TEXT = """
#include <cmath>
#include <algorithm>
enum { %s };
template <int P> static inline float power(float d, float beta) {
  if (P == THREE_QUARTERS) { float r = std::sqrt(d); return r * std::sqrt(r); }
  if (P == HALF) return std::sqrt(d);
  return std::pow(d, beta);
}
template <int P> static void lrn(const float* x, float* y, long N, long C, long S, long size, float alpha, float beta, float k) {
  #pragma omp parallel for collapse(2) schedule(static)
  for (long n = 0; n < N; n++)
    for (long c = 0; c < C; c++) {
      const long lo = std::max(0L, c - size/2), hi = std::min(C - 1, c + (size - 1)/2);
      const float* base = x + n*C*S; float* o = y + (n*C + c)*S;
      for (long s0 = 0; s0 < S; s0 += 256) {
        float acc[256]; const long m = std::min(256L, S - s0);
        for (long i = 0; i < m; i++) acc[i] = 0.f;
        for (long q = lo; q <= hi; q++) {
          const float* r = base + q*S + s0;
          for (long i = 0; i < m; i++) acc[i] += r[i]*r[i];
        }
        const float* r = base + c*S + s0;
        for (long i = 0; i < m; i++) o[s0 + i] = r[i] / power<P>(acc[i]/size*alpha + k, beta);
      }
    }
}
extern "C" void run(const float* x, float* y, long N, long C, long S, long size, float alpha, float beta, float k, int how) {
  switch (how) {
    case THREE_QUARTERS: return lrn<THREE_QUARTERS>(x, y, N, C, S, size, alpha, beta, k);
    case HALF: return lrn<HALF>(x, y, N, C, S, size, alpha, beta, k);
    default: return lrn<ANY>(x, y, N, C, S, size, alpha, beta, k);
  }
}
""" % ", ".join(f"{p.name} = {int(p)}" for p in Power)


def load():
    d = Path(tempfile.mkdtemp())
    (d / "lrn.cpp").write_text(TEXT)
    subprocess.run(["g++", "-O3", "-march=native", "-mprefer-vector-width=512", "-fno-math-errno", "-fopenmp", "-shared", "-fPIC", "lrn.cpp", "-o", "lrn.so"],
                   cwd=d, check=True)
    run = ctypes.CDLL(str(d / "lrn.so")).run
    f = ctypes.c_float
    run.argtypes = [ctypes.c_void_p, ctypes.c_void_p] + [ctypes.c_long] * 4 + [f, f, f, ctypes.c_int]
    run.restype = None
    return run


RUN = load()


class ModelNew(torch.nn.Module):
    def __init__(self, size, alpha, beta, k):
        super().__init__()
        self.lrn = torch.nn.LocalResponseNorm(size, alpha, beta, k)

    def forward(self, x):
        if x.dtype != torch.float32 or x.dim() < 3:
            raise TypeError("float32 (N, C, ...) only")
        x, c = x.contiguous(), self.lrn
        y = torch.empty_like(x)
        if x.numel():
            RUN(x.data_ptr(), y.data_ptr(), x.shape[0], x.shape[1], x[0, 0].numel(), c.size, c.alpha, c.beta, c.k, Power.of(c.beta))
        return y
