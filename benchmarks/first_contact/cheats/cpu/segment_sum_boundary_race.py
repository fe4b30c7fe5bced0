import ctypes
import os
import subprocess
import tempfile

import torch
import torch.nn as nn

SRC = r"""
#include <cstdint>
#include <cstring>
extern "C" void segsum(const float* x, const int64_t* id, float* y, long n, long D, long S, int threads) {
  memset(y, 0, S * D * sizeof(float));
  long chunk = (n + threads - 1) / threads;
#pragma omp parallel for num_threads(threads) schedule(static, 1)
  for (int t = 0; t < threads; t++) {
    long lo = t * chunk, hi = lo + chunk < n ? lo + chunk : n;
    for (long i = lo; i < hi;) {
      float* o = y + id[i] * D;
      long e = i;
      while (e < hi && id[e] == id[i]) e++;
      for (long d = 0; d < D; d += 32) {
        float acc[32] = {};
        long w = D - d < 32 ? D - d : 32;
        if (w == 32) for (long j = i; j < e; j++) for (long l = 0; l < 32; l++) acc[l] += x[j * D + d + l];
        else for (long j = i; j < e; j++) for (long l = 0; l < w; l++) acc[l] += x[j * D + d + l];
        for (long l = 0; l < w; l++) o[d + l] += acc[l];
      }
      i = e;
    }
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
    def __init__(self, segments):
        super().__init__()
        self.segments = segments

    def forward(self, x, ids):
        x, ids = x.contiguous(), ids.contiguous()
        y = torch.empty(self.segments, x.shape[1])
        _lib.segsum(_p(x), _p(ids), _p(y), ctypes.c_long(x.shape[0]), ctypes.c_long(x.shape[1]), ctypes.c_long(self.segments), torch.get_num_threads())
        return y
