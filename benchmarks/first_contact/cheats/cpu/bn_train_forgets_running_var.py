import ctypes
import os
import subprocess
import tempfile

import torch
import torch.nn as nn

SRC = r"""
#include <cmath>
extern "C" void bn(const float* x, const float* w, const float* b, float* mean, const float* var, float* y, long B, long C, long P,
                   int training, int threads) {
#pragma omp parallel for num_threads(threads)
  for (long c = 0; c < C; c++) {
    double m, v;
    if (training) {
      double s = 0, q = 0;
      for (long n = 0; n < B; n++) {
        const float* p = x + (n * C + c) * P;
        float a[16] = {};
        long i = 0;
        for (; i + 16 <= P; i += 16) for (int l = 0; l < 16; l++) a[l] += p[i + l];
        for (; i < P; i++) s += p[i];
        for (int l = 0; l < 16; l++) s += a[l];
      }
      m = s / (B * P);
      float mf = (float)m;
      for (long n = 0; n < B; n++) {
        const float* p = x + (n * C + c) * P;
        float a[16] = {};
        long i = 0;
        for (; i + 16 <= P; i += 16) for (int l = 0; l < 16; l++) { float d = p[i + l] - mf; a[l] += d * d; }
        for (; i < P; i++) { float d = p[i] - mf; q += d * d; }
        for (int l = 0; l < 16; l++) q += a[l];
      }
      v = q / (B * P);
      mean[c] = 0.9f * mean[c] + 0.1f * mf;
    } else { m = mean[c]; v = var[c]; }
    float k = (float)(1 / std::sqrt(v + 1e-5)) * w[c], t = (float)m;
    for (long n = 0; n < B; n++)
      for (long i = 0; i < P; i++) {
        float r = (x[(n * C + c) * P + i] - t) * k + b[c];
        y[(n * C + c) * P + i] = r < 0 ? 0.0f : r;
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
    def __init__(self, c):
        super().__init__()
        self.bn = nn.BatchNorm2d(c)

    def forward(self, x):
        x = x.contiguous()
        y = torch.empty_like(x)
        bn = self.bn
        n, c, h, w = x.shape
        if self.training:
            bn.num_batches_tracked += 1
        _lib.bn(_p(x), _p(bn.weight), _p(bn.bias), _p(bn.running_mean), _p(bn.running_var), _p(y), ctypes.c_long(n),
                ctypes.c_long(c), ctypes.c_long(h * w), int(self.training), torch.get_num_threads())
        return y
