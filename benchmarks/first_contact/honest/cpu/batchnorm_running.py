"""BatchNorm2d (training and evaluation, running statistics included) + LeakyReLU, one channel per task."""
import ctypes
import os
import subprocess
import tempfile

import torch
from torch import nn

CODE = r"""
#include <cmath>
#include <cstdint>
typedef int64_t i64;

static void affine(const float* x, float* y, i64 N, i64 C, i64 S, i64 c, float scale, float shift, float mean, float slope) {
    for (i64 n = 0; n < N; n++) {
        const float* a = x + (n * C + c) * S;
        float* o = y + (n * C + c) * S;
        for (i64 i = 0; i < S; i++) {
            float v = (a[i] - mean) * scale + shift;
            o[i] = v > 0.f ? v : v * slope;
        }
    }
}

extern "C" void bn_train(const float* x, const float* g, const float* b, float* rm, float* rv, float* y,
                         i64 N, i64 C, i64 S, double eps, double momentum, double slope) {
#pragma omp parallel for schedule(static)
    for (i64 c = 0; c < C; c++) {
        double s = 0;
        for (i64 n = 0; n < N; n++) {
            const float* a = x + (n * C + c) * S;
            double t[8] = {};
            i64 i = 0;
            for (; i + 8 <= S; i += 8) for (int l = 0; l < 8; l++) t[l] += a[i + l];
            for (; i < S; i++) t[0] += a[i];
            for (double v : t) s += v;
        }
        const double count = (double)N * S, mean = s / count;
        double q = 0;
        for (i64 n = 0; n < N; n++) {
            const float* a = x + (n * C + c) * S;
            double t[8] = {};
            i64 i = 0;
            for (; i + 8 <= S; i += 8) for (int l = 0; l < 8; l++) { double d = a[i + l] - mean; t[l] += d * d; }
            for (; i < S; i++) { double d = a[i] - mean; t[0] += d * d; }
            for (double v : t) q += v;
        }
        rm[c] = (float)((1 - momentum) * rm[c] + momentum * mean);
        rv[c] = (float)((1 - momentum) * rv[c] + momentum * (q / (count - 1)));
        affine(x, y, N, C, S, c, (float)(g[c] / std::sqrt(q / count + eps)), b[c], (float)mean, (float)slope);
    }
}

extern "C" void bn_eval(const float* x, const float* g, const float* b, const float* rm, const float* rv, float* y,
                        i64 N, i64 C, i64 S, double eps, double, double slope) {
#pragma omp parallel for schedule(static)
    for (i64 c = 0; c < C; c++)
        affine(x, y, N, C, S, c, (float)(g[c] / std::sqrt((double)rv[c] + eps)), b[c], rm[c], (float)slope);
}
"""


def load():
    folder = tempfile.mkdtemp()
    src = os.path.join(folder, "bn.cpp")
    with open(src, "w") as f:
        f.write(CODE)
    subprocess.run(["g++", "-O3", "-march=native", "-fopenmp", "-fPIC", "-shared", src, "-o", folder + "/bn.so"], check=True)
    lib = ctypes.CDLL(folder + "/bn.so")
    for f in (lib.bn_train, lib.bn_eval):
        f.argtypes = [ctypes.c_void_p] * 6 + [ctypes.c_int64] * 3 + [ctypes.c_double] * 3
        f.restype = None
    return lib


class ModelNew(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.bn = nn.BatchNorm2d(channels)
        self.lib = load()

    def forward(self, x):
        bn = self.bn
        x = x.contiguous()
        y = torch.empty_like(x)
        n, c, h, w = x.shape
        if bn.training and n * h * w < 2:
            raise ValueError("Expected more than 1 value per channel when training")
        if bn.training:
            bn.num_batches_tracked.add_(1)
        f = self.lib.bn_train if bn.training else self.lib.bn_eval
        f(x.data_ptr(), bn.weight.data_ptr(), bn.bias.data_ptr(), bn.running_mean.data_ptr(), bn.running_var.data_ptr(), y.data_ptr(),
          n, c, h * w, bn.eps, bn.momentum, 0.1)
        return y
