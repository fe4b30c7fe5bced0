import ctypes, os, subprocess, tempfile
import torch
import torch.nn as nn

SRC = r"""
extern "C" void k(const float* x, const float* g, float* y, int n, int c, int h, int w, int s) {
  #pragma omp parallel for collapse(2) num_threads(2)
  for (int i = 0; i < n; i++) for (int q = 0; q < c; q++) {
    const float *a = x + ((long)i * c + q) * h * w, *gg = g + (long)i * s * 2; float* o = y + ((long)i * c + q) * s;
    for (int p = 0; p < s; p++) {
      float fx = (gg[2*p] + 1) * 0.5f * (w - 1), fy = (gg[2*p+1] + 1) * 0.5f * (h - 1);
      int ix = (int)fx, iy = (int)fy;
      ix = ix < 0 ? 0 : ix > w - 2 ? w - 2 : ix; iy = iy < 0 ? 0 : iy > h - 2 ? h - 2 : iy;   // memory safety
      float dx = fx - ix, dy = fy - iy; const float* b = a + iy * w + ix;
      o[p] = (1 - dy) * (b[0] * (1 - dx) + b[1] * dx) + dy * (b[w] * (1 - dx) + b[w + 1] * dx);
    }
  }
}
"""


def _build(src):
    d = tempfile.mkdtemp()
    c, so = os.path.join(d, "k.cpp"), os.path.join(d, "k.so")
    with open(c, "w") as f:
        f.write(src)
    subprocess.check_call(["g++", "-O3", "-march=native", "-fopenmp", "-fno-math-errno", "-fno-trapping-math",
                           "-fno-signed-zeros", "-fassociative-math", "-shared", "-fPIC", c, "-o", so])
    return ctypes.CDLL(so)


_lib = _build(SRC)


def P(t):
    return ctypes.c_void_p(t.data_ptr())


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()

    def forward(self, x, grid):
        x, grid = x.contiguous(), grid.contiguous()
        n, c, h, w = x.shape
        oh, ow = grid.shape[1:3]
        y = torch.empty(n, c, oh, ow)
        _lib.k(P(x), P(grid), P(y), n, c, h, w, oh * ow)
        return y
