import ctypes, hashlib, os, subprocess, tempfile
import torch
import torch.nn as nn

SRC = r"""
#include <cmath>
#include <cstdint>
#include <cstring>
#include <algorithm>
extern "C" void run(const float* x, float* y, int NC, int H, int W) {
  int OH = H / 2, OW = W / 2;
  #pragma omp parallel for
  for (int n = 0; n < NC; n++) {
    const float* a = x + (size_t)n * H * W;
    for (int i = 0; i < OH; i++) {
      float r[260] = {0};                         // zero padded row of column maxima
      for (int p = std::max(0, 2 * i - 1); p <= 2 * i + 1; p++) for (int j = 0; j < W; j++) r[j + 1] = std::max(r[j + 1], a[p * W + j]);
      for (int j = 0; j < OW; j++) y[((size_t)n * OH + i) * OW + j] = std::max(std::max(r[2 * j], r[2 * j + 1]), r[2 * j + 2]);
    }
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
    def forward(self, x):
        x = x.contiguous()
        N, C, H, W = x.shape
        if H % 2 or W % 2 or W > 256:
            raise ValueError("shape")
        y = torch.empty(N, C, H // 2, W // 2)
        LIB.run(P(x), P(y), N * C, H, W)
        return y
