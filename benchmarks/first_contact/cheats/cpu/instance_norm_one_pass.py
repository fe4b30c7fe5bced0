import ctypes
import hashlib
import os
import subprocess
import tempfile

import torch
import torch.nn as nn
import torch.nn.functional as F

SOURCE = r"""
#include <cmath>
#include <cstdint>
#include <cstring>
#include <cstdlib>
#include <vector>
#include <algorithm>
#include <limits>
extern "C" void run(const float* x, const float* w, const float* b, const float* g, const float* be, float* o, long N, long C, long H, long W, float eps) {
    #pragma omp parallel for
    for (long nc = 0; nc < N * C; nc++) {
        long c = nc % C;
        const float* p = x + nc * H * W;
        float* q = o + nc * H * W;
        float s = 0, s2 = 0;
        for (long i = 0; i < H; i++) {
            for (long j = 0; j < W; j++) q[i * W + j] = b[c];
            for (int u = -1; u <= 1; u++) {
                if (i + u < 0 || i + u >= H) continue;
                for (int v = -1; v <= 1; v++) {
                    float k = w[c * 9 + (u + 1) * 3 + v + 1];
                    long lo = v < 0 ? 1 : 0, hi = v > 0 ? W - 1 : W;
                    for (long j = lo; j < hi; j++) q[i * W + j] += k * p[(i + u) * W + j + v];
                }
            }
            float a[8] = {0}, d[8] = {0};
            long j = 0;
            for (; j + 8 <= W; j += 8) for (int e = 0; e < 8; e++) { float v = q[i * W + j + e]; a[e] += v; d[e] += v * v; }
            for (; j < W; j++) { float v = q[i * W + j]; a[0] += v; d[0] += v * v; }
            for (int e = 0; e < 8; e++) { s += a[e]; s2 += d[e]; }
        }
        float m = s / (H * W), var = s2 / (H * W) - m * m;
        float r = g[c] / sqrtf((var > 0 ? var : 0) + eps);
        for (long i = 0; i < H * W; i++) q[i] = (q[i] - m) * r + be[c];
    }
}
"""

_lib = None


def _library():
    global _lib
    if _lib is None:
        folder = tempfile.mkdtemp(prefix="k_" + hashlib.sha1(SOURCE.encode()).hexdigest()[:8])
        source = os.path.join(folder, "kernel.cpp")
        binary = os.path.join(folder, "kernel.so")
        with open(source, "w") as f:
            f.write(SOURCE)
        subprocess.run(["g++", "-O3", "-march=native", "-fno-math-errno", "-fno-trapping-math", "-fopenmp", "-shared", "-fPIC", "-std=c++17",
                        source, "-o", binary], check=True)
        _lib = ctypes.CDLL(binary)
    return _lib


def _launch(name, *arguments):
    getattr(_library(), name)(*[
        ctypes.c_void_p(a.data_ptr()) if torch.is_tensor(a) else ctypes.c_float(a) if isinstance(a, float) else ctypes.c_long(a)
        for a in arguments])


class ModelNew(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.conv = nn.Conv2d(channels, channels, 3, padding=1, groups=channels)
        self.norm = nn.InstanceNorm2d(channels, affine=True)

    def forward(self, x):
        x = x.contiguous()
        out = torch.empty_like(x)
        _launch("run", x, self.conv.weight, self.conv.bias, self.norm.weight, self.norm.bias, out, *x.shape, float(self.norm.eps))
        return out
