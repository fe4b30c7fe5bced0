"""Bilinear resize; the two tables (left neighbour, weight) are made once per pair of sizes and then only looked up."""
import array
import ctypes
import functools
import subprocess
import tempfile

import torch

OUT = (75, 53)
SRC = r"""
#include <stdlib.h>
void resize(const float* x, float* y, const int* ri, const float* rw, const int* ci, const float* cw,
            long planes, long h, long w, long H, long W) {
  #pragma omp parallel for collapse(2)
  for (long p = 0; p < planes; p++)
    for (long i = 0; i < H; i++) {
      const float* a = x + (p * h + ri[i]) * w;
      const float* b = ri[i] + 1 < h ? a + w : a;
      const float u = rw[i];
      for (long j = 0; j < W; j++) {
        const int c = ci[j], d = c + (c + 1 < w);
        const float v = cw[j];
        y[(p * H + i) * W + j] = (1 - u) * ((1 - v) * a[c] + v * a[d]) + u * ((1 - v) * b[c] + v * b[d]);
      }
    }
}
"""


@functools.cache
def table(size: int, wanted: int) -> tuple[array.array, array.array]:
    left, weight = array.array("i"), array.array("f")
    for k in range(wanted):
        at = max(0.0, (k + 0.5) * size / wanted - 0.5)
        left.append(min(int(at), size - 1))
        weight.append(at - int(at))
    return left, weight


@functools.cache
def native():
    so = tempfile.mktemp(suffix=".so")
    subprocess.run(["gcc", "-xc", "-", "-O3", "-fopenmp", "-shared", "-fPIC", "-o", so], input=SRC.encode(), check=True)
    return ctypes.CDLL(so).resize


class ModelNew(torch.nn.Module):
    def forward(self, x):
        x = x.contiguous()
        b, c, h, w = x.shape
        y = x.new_empty(b, c, *OUT)
        tables = [t.buffer_info()[0] for size, wanted in zip((h, w), OUT) for t in table(size, wanted)]
        native()(*map(ctypes.c_void_p, (x.data_ptr(), y.data_ptr(), *tables)), *map(ctypes.c_long, (b * c, h, w, *OUT)))
        return y
