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
extern "C" void moe(const float* x, const float* gw, const float* gb, const float* w, float* o, long N, long D, long E) {
    long cap = 2 * N / E;                       // slots of an expert
    std::vector<int> slot(E * cap), used(E, 0);
    std::vector<float> prob(N);
    std::vector<int> to(N);
    #pragma omp parallel for
    for (long n = 0; n < N; n++) {
        float l[64]; int best = 0;
        for (long e = 0; e < E; e++) {
            float a[16] = {0}, s = gb[e];
            for (long d = 0; d < D; d += 16) for (int j = 0; j < 16; j++) a[j] += x[n * D + d + j] * gw[e * D + d + j];
            for (int j = 0; j < 16; j++) s += a[j];
            l[e] = s;
            if (s > l[best]) best = e;
        }
        float t = 0;
        for (long e = 0; e < E; e++) t += expf(l[e] - l[best]);
        prob[n] = 1.f / t;
        to[n] = best;
    }
    for (long n = 0; n < N; n++) {
        int best = to[n];
        if (used[best] < cap) slot[best * cap + used[best]++] = n;
        else memset(o + n * D, 0, D * 4);
    }
    #pragma omp parallel for schedule(dynamic)
    for (long e = 0; e < E; e++)
        for (int k = 0; k < used[e]; k += 4) {
            long id[4]; std::vector<float> acc(4 * D, 0.f);
            for (int j = 0; j < 4; j++) id[j] = slot[e * cap + std::min(k + j, used[e] - 1)];
            for (long d = 0; d < D; d++) {
                const float* p = w + (e * D + d) * D;
                float a = x[id[0] * D + d], b = x[id[1] * D + d], c = x[id[2] * D + d], f = x[id[3] * D + d];
                float* q = acc.data();
                for (long i = 0; i < D; i++) { q[i] += a * p[i]; q[D + i] += b * p[i]; q[2 * D + i] += c * p[i]; q[3 * D + i] += f * p[i]; }
            }
            for (int j = 0; j < 4; j++) for (long i = 0; i < D; i++) o[id[j] * D + i] = acc[j * D + i] * prob[id[j]];
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
    def __init__(self, width, experts):
        super().__init__()
        self.gate = nn.Linear(width, experts)
        self.weight = nn.Parameter(torch.randn(experts, width, width) * width ** -0.5)

    def forward(self, x):
        x = x.contiguous()
        assert x.shape[1] % 16 == 0 and self.weight.shape[0] <= 64
        out = torch.empty_like(x)
        _launch("moe", x, self.gate.weight, self.gate.bias, self.weight, out, *x.shape, self.weight.shape[0])
        return out
