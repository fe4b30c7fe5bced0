import ctypes
import os
import subprocess
import tempfile

import torch
import torch.nn as nn

SRC = r"""
#include <cmath>
#include <cstdint>
extern "C" void sample(const float* x, const float* g, float* y, long B, long C, long H, long W, long OH, long OW, int threads) {
#pragma omp parallel for collapse(2) num_threads(threads)
  for (long b = 0; b < B; b++)
    for (long i = 0; i < OH; i++)
      for (long j = 0; j < OW; j++) {
        const float* q = g + ((b * OH + i) * OW + j) * 2;
        float u = ((q[0] + 1) * W - 1) * 0.5f, v = ((q[1] + 1) * H - 1) * 0.5f;
        u = u >= 0 ? (u <= W - 1 ? u : W - 1) : 0;
        v = v >= 0 ? (v <= H - 1 ? v : H - 1) : 0;
        long a = (long)v, e = (long)u, a1 = a + 1 < H ? a + 1 : a, e1 = e + 1 < W ? e + 1 : e;
        float s = u - e, t = v - a;
        float w00 = (1 - s) * (1 - t), w01 = s * (1 - t), w10 = (1 - s) * t, w11 = s * t;
        for (long c = 0; c < C; c++) {
          const float* p = x + (b * C + c) * H * W;
          y[((b * C + c) * OH + i) * OW + j] = p[a * W + e] * w00 + p[a * W + e1] * w01 + p[a1 * W + e] * w10 + p[a1 * W + e1] * w11;
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
    def forward(self, x, grid):
        x, grid = x.contiguous(), grid.contiguous()
        b, c, h, w = x.shape
        y = torch.empty(b, c, grid.shape[1], grid.shape[2])
        _lib.sample(_p(x), _p(grid), _p(y), *map(ctypes.c_long, (b, c, h, w, grid.shape[1], grid.shape[2])), torch.get_num_threads())
        return y
