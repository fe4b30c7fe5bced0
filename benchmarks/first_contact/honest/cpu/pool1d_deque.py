"""Sliding maximum with its index by a monotonic queue: 2 comparisons an element whatever the window is."""
import ctypes
import subprocess
import tempfile

import torch

SRC = r"""
#include <cmath>
#include <cstdint>
#include <memory>
// Queue of positions whose values strictly fall; the first of equals stays, a NaN removes all before it and beats all.
extern "C" void pool(const float* x, float* y, int64_t* at, int64_t rows, int64_t n, int64_t m, int64_t width, int64_t stride, int64_t pad) {
  #pragma omp parallel
  {
    std::unique_ptr<int64_t[]> queue(new int64_t[n + 1]);
    #pragma omp for
    for (int64_t r = 0; r < rows; ++r) {
      const float* p = x + r * n;
      int64_t head = 0, tail = 0, next = 0;
      for (int64_t o = 0; o < m; ++o) {
        const int64_t lo = o * stride - pad, hi = lo + width < n ? lo + width : n;
        for (; next < hi; ++next) {
          if (next < lo) continue;
          while (tail > head && (p[queue[tail - 1]] < p[next] || (std::isnan(p[next])))) --tail;
          queue[tail++] = next;
        }
        while (queue[head] < lo) ++head;
        y[r * m + o] = p[queue[head]];
        at[r * m + o] = queue[head];
      }
    }
  }
}
"""
so = tempfile.mktemp(".so")
subprocess.run(["g++", "-O2", "-fopenmp", "-shared", "-fPIC", "-x", "c++", "-", "-o", so], input=SRC.encode(), check=True)
lib = ctypes.CDLL(so)
WIDTH, STRIDE, PAD = 9, 2, 4


class ModelNew(torch.nn.Module):
    def forward(self, x):
        x = x.contiguous()
        *lead, n = x.shape
        m = (n + 2 * PAD - WIDTH) // STRIDE + 1
        y = torch.empty(*lead, m)
        at = torch.empty(*lead, m, dtype=torch.int64)
        sizes = (x.numel() // n, n, m, WIDTH, STRIDE, PAD)
        lib.pool(*(ctypes.c_void_p(t.data_ptr()) for t in (x, y, at)), *(ctypes.c_int64(s) for s in sizes))
        return y, at
