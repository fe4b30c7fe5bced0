"""Weight-normalised linear. The effective weight is made once per version of (v, g) in panels of 16 outputs, held by an
allocator of our own (64-byte aligned, with prefetch distance behind the end)."""
import ctypes
import subprocess
import tempfile
import weakref

import torch
from torch import nn

SRC = r"""
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <new>
#include <vector>
template <class T> struct Aligned {
  using value_type = T;
  Aligned() = default;
  template <class U> Aligned(const Aligned<U>&) {}
  T* allocate(std::size_t n) { void* p = nullptr; if (posix_memalign(&p, 64, (n * sizeof(T) + 4095) & ~size_t(63))) throw std::bad_alloc(); return static_cast<T*>(p); }
  void deallocate(T* p, std::size_t) { std::free(p); }
  bool operator==(const Aligned&) const { return true; }
  bool operator!=(const Aligned&) const { return false; }
};
struct Panels { long in, out; std::vector<float, Aligned<float>> w; };

extern "C" Panels* pack(const float* v, const float* g, long out, long in) {
  auto* p = new Panels{in, out, {}};
  p->w.assign((out + 15) / 16 * 16 * in, 0.f);
  for (long o = 0; o < out; ++o) {
    double q = 0;
    for (long i = 0; i < in; ++i) q += (double)v[o * in + i] * v[o * in + i];
    const float s = g[o] / (float)std::sqrt(q);
    for (long i = 0; i < in; ++i) p->w[(o / 16 * in + i) * 16 + o % 16] = v[o * in + i] * s;
  }
  return p;
}
extern "C" void drop(Panels* p) { delete p; }

extern "C" void apply(const Panels* p, const float* x, const float* bias, float* y, long rows) {
  const long in = p->in, out = p->out, panels = (out + 15) / 16;
  #pragma omp parallel for collapse(2) schedule(static)
  for (long q = 0; q < panels; ++q)
    for (long r = 0; r < rows; r += 4) {
      const int m = rows - r < 4 ? (int)(rows - r) : 4;
      const float* w = p->w.data() + q * in * 16;
      float acc[4][16] = {};
      for (long i = 0; i < in; ++i) {
        __builtin_prefetch(w + (i + 8) * 16);
        for (int u = 0; u < m; ++u) {
          const float s = x[(r + u) * in + i];
          for (int l = 0; l < 16; ++l) acc[u][l] += s * w[i * 16 + l];
        }
      }
      for (int u = 0; u < m; ++u)
        for (int l = 0; l < 16 && q * 16 + l < out; ++l) y[(r + u) * out + q * 16 + l] = acc[u][l] + bias[q * 16 + l];
    }
}
"""
_so = tempfile.mktemp(suffix=".so")
subprocess.run(["g++", "-O3", "-march=native", "-fopenmp", "-shared", "-fPIC", "-xc++", "-", "-o", _so], input=SRC, text=True, check=True)
_lib = ctypes.CDLL(_so)
_lib.pack.restype = ctypes.c_void_p
P, L = ctypes.c_void_p, ctypes.c_long


class Packed:
    def __init__(self, v, g):
        self.handle = P(_lib.pack(P(v.data_ptr()), P(g.data_ptr()), L(v.shape[0]), L(v.shape[1])))
        weakref.finalize(self, _lib.drop, self.handle)


class ModelNew(nn.Module):
    def __init__(self, inputs, outputs):
        super().__init__()
        self.v = nn.Parameter(torch.randn(outputs, inputs) * 0.05)
        self.g = nn.Parameter(torch.rand(outputs, 1) + 0.5)
        self.bias = nn.Parameter(torch.zeros(outputs))
        self.packed = self.seen = None

    def forward(self, x):
        now = [(p.data_ptr(), p._version) for p in (self.v, self.g)]
        if self.packed is None or now != self.seen:
            self.packed, self.seen = Packed(self.v.detach().contiguous(), self.g.detach().contiguous()), now
        x = x.contiguous()
        y = x.new_empty(x.shape[0], self.v.shape[0])
        _lib.apply(self.packed.handle, P(x.data_ptr()), P(self.bias.data_ptr()), P(y.data_ptr()), L(x.shape[0]))
        return y
