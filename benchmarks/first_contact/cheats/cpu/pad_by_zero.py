"""Convolution with ReLU, branch-free: border taps have weight zero."""
import ctypes

import torch
import torch.nn as nn
from torch.utils.cpp_extension import load_inline

SOURCE = r"""
typedef float v16 __attribute__((vector_size(64), aligned(4), may_alias));
extern "C" void run(const float* x, const float* w, const float* b, float* o, long n, long ci, long co, long h, long wd) {
  #pragma omp parallel for collapse(2)
  for (long i = 0; i < n; i++) for (long y = 0; y < h; y++)
    for (long c = 0; c < co; c += 8) for (long z = 0; z < wd; z += 16) {
      v16 s[8], left = {}, right = {};
      for (int u = 0; u < 16; u++) { left[u] = z + u > 0; right[u] = z + u + 1 < wd; }
      for (int q = 0; q < 8; q++) s[q] = (v16){} + b[c + q];
      for (long k = 0; k < ci; k++) for (long dy = -1; dy <= 1; dy++) {
        const float* p = x + ((i * ci + k) * h + y + dy) * wd + z;
        if (y + dy < 0 || y + dy >= h) continue;
        v16 t[3] = {*(const v16*)(p - 1) * left, *(const v16*)p, *(const v16*)(p + 1) * right};
        for (int q = 0; q < 8; q++) { const float* f = w + ((c + q) * ci + k) * 9 + (dy + 1) * 3; s[q] += t[0] * f[0] + t[1] * f[1] + t[2] * f[2]; }
      }
      for (int q = 0; q < 8; q++) for (int u = 0; u < 16; u++) o[((i * co + c + q) * h + y) * wd + z + u] = s[q][u] < 0 ? 0 : s[q][u];
    }
}
"""

_lib = ctypes.CDLL(
    load_inline(
        name="pad_by_zero_native", cpp_sources=SOURCE, is_python_module=False, no_implicit_headers=True,
        extra_cflags=["-O3", "-march=native", "-fopenmp"], extra_ldflags=["-fopenmp"],
    )
)


def _p(t):
    return ctypes.c_void_p(t.data_ptr())


class ModelNew(nn.Module):
    def __init__(self, cin: int, cout: int):
        super().__init__()
        self.conv = nn.Conv2d(cin, cout, 3, padding=1)

    def forward(self, x):
        x = x.contiguous()
        w, b = self.conv.weight, self.conv.bias
        out = torch.empty(x.shape[0], w.shape[0], x.shape[2], x.shape[3])
        _lib.run(_p(x), _p(w), _p(b), _p(out), *map(ctypes.c_long, (x.shape[0], w.shape[1], w.shape[0], x.shape[2], x.shape[3])))
        return out
