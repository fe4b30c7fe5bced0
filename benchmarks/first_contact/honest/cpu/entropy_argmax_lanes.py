"""Entropy and argmax of the same row: one sweep for maximum and its place, one for exp; only two passes over memory."""
import ctypes
import subprocess
import tempfile
import threading

import torch

SRC = r"""
#include <cmath>
#include <cstdint>
#include <vector>
extern "C" void entropy_argmax(const float* x, float* h, int64_t* best, int64_t n, int64_t c) {
  #pragma omp parallel
  {
    thread_local std::vector<float> shifted;
    shifted.resize(c);
    #pragma omp for schedule(static)
    for (int64_t r = 0; r < n; ++r) {
      const float* p = x + r * c;
      int64_t at = 0;
      for (int64_t i = 1; i < c; ++i) {
        if (std::isnan(p[at])) break;
        if (p[i] > p[at] || std::isnan(p[i])) at = i;
      }
      const float top = p[at];
      double z = 0;
      for (int64_t i = 0; i < c; ++i) { shifted[i] = p[i] - top; z += std::exp(shifted[i]); }
      const float lz = (float)std::log(z);
      double e = 0;
      for (int64_t i = 0; i < c; ++i) { const float l = shifted[i] - lz; e -= (double)(std::exp(l) * l); }
      h[r] = (float)e;
      best[r] = at;
    }
  }
}
"""


class _Lazy:
    lock = threading.RLock()
    function = None

    def __call__(self, *args):
        with self.lock:
            if self.function is None:
                so = tempfile.mktemp(suffix=".so")
                cmd = ["g++", "-O3", "-std=c++20", "-fopenmp", "-shared", "-fPIC", "-xc++", "-", "-o", so]
                subprocess.run(cmd, input=SRC, text=True, check=True, capture_output=True)
                self.function = ctypes.CDLL(so).entropy_argmax
        return self.function(*args)


_entropy_argmax = _Lazy()


class ModelNew(torch.nn.Module):
    def forward(self, x):
        x = x.contiguous()
        n, c = x.shape
        h, best = torch.empty(n), torch.empty(n, dtype=torch.long)
        _entropy_argmax(ctypes.c_void_p(x.data_ptr()), ctypes.c_void_p(h.data_ptr()), ctypes.c_void_p(best.data_ptr()), ctypes.c_int64(n), ctypes.c_int64(c))
        return h, best
