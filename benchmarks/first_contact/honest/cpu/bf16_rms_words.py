"""RMSNorm, bf16 in and out: words are widened by a shift, sums in float lanes, rounded to nearest even by hand."""
import ctypes, subprocess, tempfile
import torch

SRC = r"""
#include <math.h>
#include <stdint.h>
typedef uint16_t h;
static inline float up(h v) { union { uint32_t u; float f; } c = { (uint32_t)v << 16 }; return c.f; }
static inline h down(float v) {
  union { float f; uint32_t u; } c = { v };
  if (v != v) return (h)(c.u >> 16 | 0x40);
  return (h)((c.u + 0x7fffu + (c.u >> 16 & 1)) >> 16);
}
void rms(const h* x, const h* w, h* y, long n, long d, float eps) {
  #pragma omp parallel for
  for (long r = 0; r < n; r++) {
    const h* a = x + r * d; h* b = y + r * d;
    double q = 0;
    for (long i = 0; i < d; i++) { float v = up(a[i]); q += (double)v * v; }
    float s = (float)(1.0 / sqrt(q / d + eps));
    for (long i = 0; i < d; i++) b[i] = down(up(a[i]) * s * up(w[i]));
  }
}
"""
so = tempfile.mktemp(suffix=".so")
subprocess.run(["gcc", "-O3", "-march=native", "-ffp-contract=off", "-fopenmp", "-shared", "-fPIC", "-xc", "-", "-o", so, "-lm"], input=SRC.encode(), check=True)
rms = ctypes.CDLL(so).rms
rms.argtypes = [ctypes.c_void_p] * 3 + [ctypes.c_long] * 2 + [ctypes.c_float]


class ModelNew(torch.nn.Module):
    def __init__(self, width):
        super().__init__()
        self.scale = torch.nn.Parameter(torch.ones(width, dtype=torch.bfloat16))

    def forward(self, x):
        assert x.dtype == torch.bfloat16
        x = x.contiguous()
        y = torch.empty_like(x)
        rms(x.data_ptr(), self.scale.data_ptr(), y.data_ptr(), x.numel() // x.shape[-1], x.shape[-1], 1e-6)
        return y
