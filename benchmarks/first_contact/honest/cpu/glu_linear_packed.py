"""GLU: both products in one kernel over weights packed in interleaved panels of 16 columns."""
import ctypes, os, subprocess, tempfile, threading
from dataclasses import dataclass
import torch
import torch.nn as nn

CPP = r"""
#include <cmath>
#include <cstring>
typedef float vf __attribute__((vector_size(64), aligned(4)));
// panel p: for every k, 16 value weights and then 16 gate weights; columns past the end are zero
extern "C" void pack(const float* wv, const float* wg, float* p, long din, long dout) {
    const long np = (dout + 15) / 16;
    for (long b = 0; b < np; ++b) for (long k = 0; k < din; ++k) for (long c = 0; c < 16; ++c) {
        const long o = b * 16 + c;
        p[(b * din + k) * 32 + c] = o < dout ? wv[o * din + k] : 0.f;
        p[(b * din + k) * 32 + 16 + c] = o < dout ? wg[o * din + k] : 0.f;
    }
}
static inline float ex(float x) {
    x = x < -104.f ? -104.f : x;  x = x > 89.f ? 89.f : x;
    float n = rintf(x * 1.44269504f), r = fmaf(n, -0.693359375f, x);
    r = fmaf(n, 2.12194440e-4f, r);
    float p = 1.9875691500e-4f;
    p = p*r + 1.3981999507e-3f; p = p*r + 8.3334519073e-3f; p = p*r + 4.1665795894e-2f;
    p = p*r + 1.6666665459e-1f; p = p*r + 5.0000001201e-1f; p = p*r*r + r + 1.f;
    int k = (int)n, h = k >> 1;
    union { unsigned u; float f; } a, b;
    a.u = (unsigned)(h + 127) << 23;  b.u = (unsigned)(k - h + 127) << 23;
    return p * a.f * b.f;
}
template <int R> static void tile(const float* x, const float* p, const float* bv, const float* bg, float* out, long din, long dout, long w) {
    vf a[R] = {}, g[R] = {};
    for (long k = 0; k < din; ++k) {
        const vf v = *(const vf*)(p + k * 32), u = *(const vf*)(p + k * 32 + 16);
        #pragma GCC unroll 8
        for (int r = 0; r < R; ++r) { const float s = x[r * din + k]; a[r] += v * s; g[r] += u * s; }
    }
    float cv[16] = {0}, cg[16] = {0}, y[16], z[16];
    for (long c = 0; c < w; ++c) { cv[c] = bv[c]; cg[c] = bg[c]; }
    for (int r = 0; r < R; ++r) {
        std::memcpy(y, &a[r], 64); std::memcpy(z, &g[r], 64);
        #pragma omp simd
        for (int c = 0; c < 16; ++c) y[c] = (y[c] + cv[c]) / (1.f + ex(-(z[c] + cg[c])));
        std::memcpy(out + r * dout, y, sizeof(float) * w);
    }
}
extern "C" void glu(const float* x, const float* p, const float* bv, const float* bg, float* out, long n, long din, long dout) {
    const long np = (dout + 15) / 16;
    #pragma omp parallel for num_threads(2) schedule(static)
    for (long b = 0; b < np; ++b) {
        const long w = dout - b * 16 < 16 ? dout - b * 16 : 16;
        const float* q = p + b * din * 32; long i = 0;
        for (; i + 8 <= n; i += 8) tile<8>(x + i * din, q, bv + b * 16, bg + b * 16, out + i * dout + b * 16, din, dout, w);
        for (; i < n; ++i) tile<1>(x + i * din, q, bv + b * 16, bg + b * 16, out + i * dout + b * 16, din, dout, w);
    }
}
"""

_lock, _cache = threading.Lock(), {}

def native():
    with _lock:
        if "lib" not in _cache:
            with tempfile.TemporaryDirectory() as d:
                so = os.path.join(d, "glu.so")
                subprocess.run(["g++", "-O3", "-march=native", "-fopenmp", "-fno-math-errno", "-fno-trapping-math", "-mprefer-vector-width=512", "-shared", "-fPIC",
                                "-xc++", "-", "-o", so], input=CPP, text=True, check=True)
                lib = ctypes.CDLL(so)
            lib.pack.argtypes = [ctypes.c_void_p] * 3 + [ctypes.c_long] * 2
            lib.glu.argtypes = [ctypes.c_void_p] * 5 + [ctypes.c_long] * 3
            lib.pack.restype = lib.glu.restype = None
            _cache["lib"] = lib
        return _cache["lib"]

@dataclass(frozen=True)
class Packed:
    stamp: tuple
    panels: torch.Tensor

class ModelNew(nn.Module):
    def __init__(self, din, dout):
        super().__init__()
        self.value = nn.Linear(din, dout)
        self.gate = nn.Linear(din, dout)
        self._packed = None

    def _weights(self):
        wv, wg = self.value.weight, self.gate.weight
        stamp = (wv._version, wv.data_ptr(), wg._version, wg.data_ptr())
        if self._packed is None or self._packed.stamp != stamp:
            dout, din = wv.shape
            panels = torch.empty((dout + 15) // 16 * din * 32)
            a, b = wv.detach().contiguous(), wg.detach().contiguous()
            native().pack(a.data_ptr(), b.data_ptr(), panels.data_ptr(), din, dout)
            self._packed = Packed(stamp, panels)
        return self._packed.panels

    def forward(self, x):
        dout, din = self.value.weight.shape
        if x.dtype != torch.float32 or x.dim() != 2 or x.shape[1] != din:
            raise ValueError(f"expected float32 (n, {din})")
        x, p = x.contiguous(), self._weights()
        out = torch.empty(x.shape[0], dout)
        native().glu(x.data_ptr(), p.data_ptr(), self.value.bias.data_ptr(), self.gate.bias.data_ptr(),
                     out.data_ptr(), x.shape[0], din, dout)
        return out
