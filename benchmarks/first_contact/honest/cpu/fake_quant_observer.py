"""Rounds exactly where PyTorch rounds: the same float operations in the same order, no contraction to fma."""
import ctypes, subprocess, tempfile
import torch
from torch import nn

SRC = r"""
#include <math.h>
/* NaN goes to the accumulator and stays there */
#define LOW(a, b) ((a) != (a) ? (a) : ((b) != (b) ? (b) : ((b) < (a) ? (b) : (a))))
#define HIGH(a, b) ((a) != (a) ? (a) : ((b) != (b) ? (b) : ((b) > (a) ? (b) : (a))))
static float clampf(float v, float a, float b) { return v < a ? a : (v > b ? b : v); }
void observe(const float* x, long n, float keep, float mom, float* lo, float* hi) {
  float a[16], b[16]; float mn = x[0], mx = x[0]; long i = 0;
  if (n >= 16) {
    for (int k = 0; k < 16; k++) a[k] = b[k] = x[k];
    for (i = 16; i + 16 <= n; i += 16)
      for (int k = 0; k < 16; k++) { float v = x[i + k]; a[k] = LOW(a[k], v); b[k] = HIGH(b[k], v); }
    for (int k = 0; k < 16; k++) { mn = LOW(mn, a[k]); mx = HIGH(mx, b[k]); }
  }
  for (; i < n; i++) { mn = LOW(mn, x[i]); mx = HIGH(mx, x[i]); }
  *lo = *lo * keep + mn * mom;
  *hi = *hi * keep + mx * mom;
}
void quantise(const float* x, long n, float lo, float hi, float* y) {
  float range = hi - lo; range = range < 1e-6f ? 1e-6f : range;
  const float scale = range / 255.0f, zero = clampf(rintf(-lo / scale), 0.0f, 255.0f);
  #pragma omp parallel for simd schedule(static)
  for (long i = 0; i < n; i++) {
    float q = rintf(x[i] / scale) + zero;
    q = q < 0.0f ? 0.0f : q; q = q > 255.0f ? 255.0f : q;
    y[i] = (q - zero) * scale;
  }
}
"""


def _bind():
    with tempfile.TemporaryDirectory() as d:
        with open(f"{d}/q.c", "w") as f:
            f.write(SRC)
        subprocess.run(["gcc", "-std=c11", "-O3", "-march=native", "-mprefer-vector-width=512", "-ffp-contract=off", "-fno-trapping-math",
                        "-fno-math-errno", "-fopenmp", "-shared", "-fPIC", f"{d}/q.c", "-o", f"{d}/q.so", "-lm"], check=True)
        lib = ctypes.CDLL(f"{d}/q.so")
    p, n, f = ctypes.c_void_p, ctypes.c_long, ctypes.c_float
    lib.observe.argtypes, lib.observe.restype = [p, n, f, f, p, p], None
    lib.quantise.argtypes, lib.quantise.restype = [p, n, f, f, p], None
    return lib


_lib = _bind()


class Observer(nn.Module):
    """Holds the two buffers at the level of the model itself (mixin base)."""

    def __init__(self):
        super().__init__()
        self.register_buffer("lo", torch.tensor(-1.0))
        self.register_buffer("hi", torch.tensor(1.0))


class ModelNew(Observer):
    def __init__(self, momentum):
        super().__init__()
        self.momentum = momentum

    def forward(self, x):
        if x.dtype != torch.float32 or self.lo.dtype != torch.float32 or x.numel() == 0:
            raise TypeError("non-empty float32 only")
        x = x.contiguous()
        y = torch.empty_like(x)
        if self.training:
            _lib.observe(x.data_ptr(), x.numel(), 1 - self.momentum, self.momentum, self.lo.data_ptr(), self.hi.data_ptr())
        _lib.quantise(x.data_ptr(), x.numel(), float(self.lo), float(self.hi), y.data_ptr())
        return y
