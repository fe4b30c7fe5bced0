import ctypes
import os
import subprocess
import tempfile

import torch
import torch.nn as nn

SRC = r"""
#include <cmath>
extern "C" void grid_sample(const float* x, const float* g, float* y, long B, long C, long H, long W, long OP) {
  #pragma omp parallel for collapse(2) schedule(static)
  for (long b = 0; b < B; b++)
    for (long p0 = 0; p0 < OP; p0 += 128) {
     long pn = p0 + 128 < OP ? 128 : OP - p0; float w[4][128]; int off[128];
     for (long r = 0; r < pn; r++) {
      long p = p0 + r;
      float fx = (g[(b * OP + p) * 2] + 1) * 0.5f * (W - 1), fy = (g[(b * OP + p) * 2 + 1] + 1) * 0.5f * (H - 1);
      fx = fminf(fmaxf(fx, 0.0f), W - 1.0f); fy = fminf(fmaxf(fy, 0.0f), H - 1.0f);     // stay inside
      long ix = (long)fx, iy = (long)fy;
      if (ix > W - 2) ix = W - 2;
      if (iy > H - 2) iy = H - 2;
      float ax = fx - ix, ay = fy - iy;
      w[0][r] = (1 - ax) * (1 - ay); w[1][r] = ax * (1 - ay); w[2][r] = (1 - ax) * ay; w[3][r] = ax * ay;
      off[r] = (int)(iy * W + ix);
     }
     for (long c = 0; c < C; c++) {
      const float* s = x + (b * C + c) * H * W; float* o = y + (b * C + c) * OP + p0;
      for (long r = 0; r < pn; r++)
        o[r] = w[0][r] * s[off[r]] + w[1][r] * s[off[r] + 1] + w[2][r] * s[off[r] + W] + w[3][r] * s[off[r] + W + 1];
     }
    }
}
"""


def _build(name, src, flags=()):
    folder = tempfile.mkdtemp(prefix=name)
    cpp, so = os.path.join(folder, name + ".cpp"), os.path.join(folder, name + ".so")
    with open(cpp, "w") as f:
        f.write(src)
    subprocess.run(["g++", "-O3", "-march=native", "-fopenmp", "-shared", "-fPIC", "-std=c++17",
                    *flags, cpp, "-o", so], check=True, capture_output=True)
    return ctypes.CDLL(so)


LIB = _build("grid_sample_border", SRC, ())
I = ctypes.c_long


def P(t):
    return ctypes.c_void_p(t.data_ptr())


class ModelNew(nn.Module):
    def forward(self, x, grid):
        x, grid = x.contiguous(), grid.contiguous()
        b, c, h, w = x.shape
        y = torch.empty(b, c, grid.shape[1], grid.shape[2])
        LIB.grid_sample(P(x), P(grid), P(y), I(b), I(c), I(h), I(w), I(grid.shape[1] * grid.shape[2]))
        return y
