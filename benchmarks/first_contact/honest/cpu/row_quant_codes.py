"""int8 codes + scale by row.  Division, not a reciprocal: codes must equal PyTorch's to the bit."""
import ctypes, subprocess, tempfile
import torch

_C = r"""
#include <math.h>
#include <stdint.h>
void quant(const float* x, int8_t* q, float* scale, long n, long c) {
  #pragma omp parallel for
  for (long r = 0; r < n; ++r) {
    const float* p = x + r * c;
    uint32_t top = 0;                                  /* magnitudes order like their bits; NaN is above inf */
    for (long i = 0; i < c; ++i) {
      union { float f; uint32_t u; } v = { p[i] };
      v.u &= 0x7fffffffu;
      top = v.u > top ? v.u : top;
    }
    union { uint32_t u; float f; } m = { top };
    float s = m.f / 127.0f;
    s = s < 1e-8f ? 1e-8f : s;
    for (long i = 0; i < c; ++i) {
      float v = rintf(p[i] / s);
      v = v < -127.f ? -127.f : v > 127.f ? 127.f : v;
      q[r * c + i] = v == v ? (int8_t)(int)v : 0;
    }
    scale[r] = s;
  }
}
"""
_so = tempfile.mkdtemp() + "/q.so"
subprocess.run(["gcc", "-O3", "-msse4.1", "-fopenmp", "-shared", "-fPIC", "-xc", "-", "-o", _so, "-lm"], input=_C, text=True, check=True)
_quant = ctypes.CDLL(_so).quant


class ModelNew(torch.nn.Module):
    def forward(self, x):
        x = x.contiguous()
        n, c = x.shape
        codes, scale = x.new_empty((n, c), dtype=torch.int8), x.new_empty((n, 1))
        _quant(ctypes.c_void_p(x.data_ptr()), ctypes.c_void_p(codes.data_ptr()), ctypes.c_void_p(scale.data_ptr()), ctypes.c_long(n), ctypes.c_long(c))
        return codes, scale
