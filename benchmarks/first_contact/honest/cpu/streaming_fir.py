import os, tempfile, subprocess
import cffi
import torch
from torch import nn

ffi = cffi.FFI()
ffi.cdef("int fir(const float *x, const float *w, float *hist, float *y, int C, int N, int K);")

_C = r"""
#include <stdlib.h>
#include <string.h>
#define BLK 64
typedef float V __attribute__((vector_size(64)));
/* y[n] = sum_k w[k] * full[n + k], full = history followed by x; 64 outputs at a time stay in registers */
int fir(const float *x, const float *w, float *hist, float *y, int C, int N, int K) {
  int H = K - 1, bad = 0;
  #pragma omp parallel for schedule(static) reduction(|:bad)
  for (int c = 0; c < C; c++) {
    size_t len = (size_t)H + N;
    float *full = malloc((len + BLK) * sizeof(float));
    if (!full) { bad = 1; continue; }
    memcpy(full, hist + (size_t)c*H, H*sizeof(float));
    memcpy(full + H, x + (size_t)c*N, N*sizeof(float));
    memset(full + len, 0, BLK*sizeof(float));
    const float *wc = w + (size_t)c*K; float *yc = y + (size_t)c*N;
    for (int n = 0; n < N; n += BLK) {
      V acc[4] = {{0}, {0}, {0}, {0}};
      for (int k = 0; k < K; k++) {
        const float g = wc[k], *p = full + n + k; V v[4];
        memcpy(v, p, sizeof v);
        acc[0] += g*v[0]; acc[1] += g*v[1]; acc[2] += g*v[2]; acc[3] += g*v[3];
      }
      memcpy(yc + n, acc, (N - n < BLK ? N - n : BLK)*sizeof(float));
    }
    memcpy(hist + (size_t)c*H, full + N, H*sizeof(float));
    free(full);
  }
  return bad;
}
"""


def _open():
    base = tempfile.mkdtemp(prefix="fir-")
    src, out = os.path.join(base, "fir.c"), os.path.join(base, "libfir.so")
    with open(src, "w") as fh:
        print(_C, file=fh)
    env = {**os.environ, "LC_ALL": "C"}
    subprocess.check_call(["gcc", "-O3", "-march=native", "-mprefer-vector-width=512", "-fopenmp", "-shared", "-fPIC", src, "-o", out], env=env)
    return ffi.dlopen(out)


_lib = _open()


def f32(t):
    """Pointer to the data of a contiguous float32 tensor."""
    if t.dtype != torch.float32 or not t.is_contiguous():
        raise TypeError("contiguous float32 expected")
    return ffi.cast("float *", t.data_ptr())


class ModelNew(nn.Module):
    def __init__(self, channels, taps):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(channels, 1, taps) / taps ** 0.5)
        self.register_buffer("history", torch.zeros(channels, taps - 1))

    def forward(self, x):
        c, _, k = self.weight.shape
        if x.dim() != 2 or x.shape[0] != c or x.shape[1] < 1 or tuple(self.history.shape) != (c, k - 1):
            raise ValueError("shape")
        y = torch.empty(x.shape, dtype=torch.float32)
        x, w = x.contiguous(), self.weight.contiguous()
        if _lib.fir(f32(x), f32(w), f32(self.history), f32(y), c, x.shape[1], k):
            raise MemoryError("fir")
        return y
