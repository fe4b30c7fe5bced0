import ctypes
import os
import subprocess
import tempfile

import torch
import torch.nn as nn

SRC = r"""
#include <vector>
extern "C" void blur(const float* x, const float* k, float* y, long B, long C, long H, long W, long K) {
  long OH = H - K + 1, OW = W - K + 1;
  #pragma omp parallel
  {
    std::vector<float> tmp(H * OW), row(K), col(K);
    #pragma omp for collapse(2) schedule(static)
    for (long b = 0; b < B; b++)
      for (long c = 0; c < C; c++) {
        const float *kc = k + c * K * K, *a = x + (b * C + c) * H * W; float* o = y + (b * C + c) * OH * OW; float s = 0;
        for (long i = 0; i < K; i++) row[i] = col[i] = 0;
        for (long i = 0; i < K; i++) for (long j = 0; j < K; j++) { row[j] += kc[i * K + j]; col[i] += kc[i * K + j]; s += kc[i * K + j]; }
        for (long i = 0; i < K; i++) col[i] /= s;
        for (long i = 0; i < H; i++) {
          float* t = tmp.data() + i * OW;
          for (long j = 0; j < OW; j++) t[j] = 0;
          for (long q = 0; q < K; q++) { float w = row[q]; for (long j = 0; j < OW; j++) t[j] += w * a[i * W + j + q]; }
        }
        for (long i = 0; i < OH; i++) {
          for (long j = 0; j < OW; j++) o[i * OW + j] = 0;
          for (long q = 0; q < K; q++) { float w = col[q]; const float* t = tmp.data() + (i + q) * OW; for (long j = 0; j < OW; j++) o[i * OW + j] += w * t[j]; }
        }
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


LIB = _build("blur_taken_as_separable", SRC, ())
I = ctypes.c_long


def P(t):
    return ctypes.c_void_p(t.data_ptr())


class ModelNew(nn.Module):
    def __init__(self, size, channels):
        super().__init__()
        t = torch.exp(-((torch.arange(size) - size // 2) / 1.7) ** 2 / 2)
        k = t[:, None] * t[None, :]
        self.register_buffer("kernel", (k / k.sum()).expand(channels, 1, size, size).clone())

    def forward(self, x):
        x, k = x.contiguous(), self.kernel.contiguous()
        b, c, h, w = x.shape
        s = k.shape[-1]
        y = torch.empty(b, c, h - s + 1, w - s + 1)
        LIB.blur(P(x), P(k), P(y), I(b), I(c), I(h), I(w), I(s))
        return y
