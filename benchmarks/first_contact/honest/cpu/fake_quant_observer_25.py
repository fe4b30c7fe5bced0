"""Fake quantisation with a moving min/max observer; training moves the two buffers, evaluation only reads them."""
import ctypes, pathlib, subprocess, tempfile
import torch
import torch.nn as nn

SRC = r"""
#include <math.h>
#include <stdint.h>
static inline float least(float a, float b) { return (a < b || a != a) ? a : b; }
static inline float most(float a, float b) { return (a > b || a != a) ? a : b; }
#pragma omp declare reduction(nmin : float : omp_out = least(omp_in, omp_out)) initializer(omp_priv = INFINITY)
#pragma omp declare reduction(nmax : float : omp_out = most(omp_in, omp_out)) initializer(omp_priv = -INFINITY)
/* the order of the roundings is the module's: mul, mul, add */
void observe(const float* x, int64_t n, float keep, float take, float* lo, float* hi) {
    float a = INFINITY, b = -INFINITY;
    #pragma omp parallel for simd num_threads(2) reduction(nmin:a) reduction(nmax:b)
    for (int64_t i = 0; i < n; ++i) { a = least(x[i], a); b = most(x[i], b); }
    const float l = *lo * keep, h = *hi * keep, la = a * take, hb = b * take;
    *lo = l + la;
    *hi = h + hb;
}
void quantise(const float* x, float* y, int64_t n, const float* lo, const float* hi) {
    float range = *hi - *lo;
    range = range < 1e-8f ? 1e-8f : range;
    const float scale = range / 255.f, zero = rintf(-*lo / scale);
    #pragma omp parallel for simd num_threads(2)
    for (int64_t i = 0; i < n; ++i) {
        float q = rintf(x[i] / scale) + zero;
        q = q < 0.f ? 0.f : q;
        q = q > 255.f ? 255.f : q;
        y[i] = (q - zero) * scale;
    }
}
"""

def build(where=pathlib.Path(tempfile.gettempdir())):
    with tempfile.NamedTemporaryFile(dir=where, suffix=".so") as so:
        # no fused multiply-add: a value on the border of two levels must fall as it does in PyTorch
        subprocess.run(["gcc", "-O3", "-march=native", "-fopenmp", "-ffp-contract=off", "-fno-trapping-math", "-fno-math-errno",
                        "-shared", "-fPIC", "-xc", "-", "-o", so.name, "-lm"], input=SRC.encode(), check=True)
        lib = ctypes.CDLL(so.name)
    lib.observe.argtypes = [ctypes.c_void_p, ctypes.c_int64, ctypes.c_float, ctypes.c_float, ctypes.c_void_p, ctypes.c_void_p]
    lib.quantise.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_void_p, ctypes.c_void_p]
    lib.observe.restype = lib.quantise.restype = None
    return lib

class ModelNew(nn.Module):
    _lib = build()

    def __init__(self, momentum):
        super().__init__()
        self.momentum = momentum
        self.register_buffer("lo", torch.tensor(-1.0))
        self.register_buffer("hi", torch.tensor(1.0))

    def forward(self, x):
        if x.dtype != torch.float32 or x.numel() == 0 or self.lo.dtype != torch.float32 or self.hi.dtype != torch.float32:
            raise TypeError("float32 only, and not empty")
        x = x.contiguous()
        lo, hi, n = self.lo, self.hi, x.numel()
        if self.training:
            new_lo, new_hi = lo.clone(), hi.clone()
            self._lib.observe(x.data_ptr(), n, 1 - self.momentum, self.momentum, new_lo.data_ptr(), new_hi.data_ptr())
            lo.copy_(new_lo)                  # copy_ counts the change in _version
            hi.copy_(new_hi)
        y = torch.empty_like(x)
        self._lib.quantise(x.data_ptr(), y.data_ptr(), n, lo.data_ptr(), hi.data_ptr())
        return y
