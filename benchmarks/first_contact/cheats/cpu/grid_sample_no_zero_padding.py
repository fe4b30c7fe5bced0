import ctypes, hashlib, os, subprocess, tempfile
import torch
import torch.nn as nn

SRC = r"""
#include <cmath>
#include <cstdint>
#include <cstring>
#include <algorithm>
extern "C" void run(const float* x, const float* g, float* y, int N, int C, int H, int W, int OS) {
  #pragma omp parallel for
  for (int n = 0; n < N; n++)
    for (int p = 0; p < OS; p++) {
      const float* q = g + ((size_t)n * OS + p) * 2;
      float fx = ((q[0] + 1) * W - 1) * 0.5f, fy = ((q[1] + 1) * H - 1) * 0.5f;
      fx = std::min(std::max(fx, 0.f), W - 1.001f); fy = std::min(std::max(fy, 0.f), H - 1.001f);
      int ix = (int)fx, iy = (int)fy; float a = fx - ix, b = fy - iy;
      const float* s = x + (size_t)n * C * H * W + iy * W + ix;
      for (int c = 0; c < C; c++, s += H * W)
        y[((size_t)n * C + c) * OS + p] = (1 - b) * ((1 - a) * s[0] + a * s[1]) + b * ((1 - a) * s[W] + a * s[W + 1]);
    }
}
"""


def build(src):
    d = os.path.join(tempfile.gettempdir(), "kern_" + hashlib.sha1(src.encode()).hexdigest()[:16])
    os.makedirs(d, exist_ok=True)
    so = os.path.join(d, "k.so")
    if not os.path.exists(so):
        with open(os.path.join(d, "k.cpp"), "w") as f:
            f.write(src)
        tmp = so + ".%d" % os.getpid()
        subprocess.check_call(["g++", "-O3", "-march=native", "-ffast-math", "-fno-finite-math-only",
                               "-D__FAST_MATH__", "-fopenmp", "-fPIC", "-c", os.path.join(d, "k.cpp"), "-o", tmp + ".o"])
        subprocess.check_call(["g++", "-shared", "-fopenmp", tmp + ".o", "-lm", "-o", tmp])
        os.replace(tmp, so)
    return ctypes.CDLL(so)


LIB = build(SRC)


def P(t):
    return ctypes.c_void_p(t.data_ptr())


class ModelNew(nn.Module):
    def forward(self, x, grid):
        x, grid = x.contiguous(), grid.contiguous()
        N, C, H, W = x.shape
        OH, OW = grid.shape[1:3]
        y = torch.empty(N, C, OH, OW)
        LIB.run(P(x), P(grid), P(y), N, C, H, W, OH * OW)
        return y
