# Time-blocked scan: the state of 16 channels lives in one AVX-512 register over all steps.
import atexit, ctypes, shutil, subprocess, tempfile
from pathlib import Path
import torch
from torch import nn, Tensor

_CPP = r"""
#include <cstring>
#include <cmath>
namespace {
constexpr int W = 16;
typedef float V __attribute__((vector_size(64)));
typedef int I __attribute__((vector_size(64)));
inline V load(const float* p) { V v; std::memcpy(&v, p, 64); return v; }
inline void store(float* p, V v) { std::memcpy(p, &v, 64); }
inline V all(float f) { return V{} + f; }
inline V vexp(V x) {              // exp, |rel error| < 2e-7, NaN passes through
  x = x > 89.f ? all(89.f) : x;  x = x < -105.f ? all(-105.f) : x;
  V n = (x * 1.44269504088896341f + 12582912.f) - 12582912.f;
  V r = x - n * 0.693359375f;  r = r + n * 2.12194440e-4f;
  V p = all(1.9875691500e-4f);
  p = p*r + 1.3981999507e-3f; p = p*r + 8.3334519073e-3f; p = p*r + 4.1665795894e-2f;
  p = p*r + 1.6666665459e-1f; p = p*r + 5.0000001201e-1f;
  p = p*r*r + r + 1.f;
  I k = __builtin_convertvector(n, I), h = k >> 1, l = k - h;
  return p * (V)((h + 127) << 23) * (V)((l + 127) << 23);
}
}
extern "C" int scan(const float* a, const float* x, const float* h0, const float* bias,
                    float* out, float* last, int B, int T, int D) {
  if (D % W) return 1;
  for (int b = 0; b < B; b++)
    for (int d = 0; d < D; d += W) {
      V h = load(h0 + (long)b*D + d), bi = load(bias + d);
      const float *pa = a + (long)b*T*D + d, *px = x + (long)b*T*D + d; float* po = out + (long)b*T*D + d;
      for (int t = 0; t < T; t++, pa += D, px += D, po += D) {
        V e = vexp(-(load(pa) + bi)), g = 1.f / (1.f + e);
        h = g*h + (1.f - g)*load(px);
        store(po, h);
      }
      store(last + (long)b*D + d, h);
    }
  return 0;
}
"""

_dir = Path(tempfile.mkdtemp())
atexit.register(shutil.rmtree, _dir, ignore_errors=True)
(_dir / "scan.cc").write_text(_CPP)
subprocess.check_call(["g++", "-std=c++17", "-O3", "-march=native", "-shared", "-fPIC", "-o", _dir / "scan.so", _dir / "scan.cc"])
_scan = ctypes.CDLL(str(_dir / "scan.so")).scan
_scan.argtypes = [ctypes.c_void_p] * 6 + [ctypes.c_int] * 3


class ModelNew(nn.Module):
    def __init__(self, dim: int):
        super().__init__()
        self.bias = nn.Parameter(torch.randn(dim) * 0.5 + 1.0)

    def forward(self, a: Tensor, x: Tensor, h0: Tensor):
        B, T, D = x.shape
        if a.shape != x.shape or h0.shape != (B, D) or self.bias.shape != (D,) or T == 0:
            raise ValueError("shapes")
        args = [t.detach().contiguous() for t in (a, x, h0, self.bias)]
        if {t.dtype for t in args} != {torch.float32}:
            raise TypeError("float32 wanted")
        out, last = x.new_empty(B, T, D), x.new_empty(B, D)
        if _scan(*(t.data_ptr() for t in args), out.data_ptr(), last.data_ptr(), B, T, D):
            raise ValueError("dim must be a multiple of 16")
        return out, last
