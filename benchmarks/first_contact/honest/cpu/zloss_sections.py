import ctypes
import os
import subprocess
import tempfile

import torch
import torch.nn as nn

# Rows in two OpenMP sections (or one after the other). exp through libmvec's vector function.
CPP = r"""
#include <cmath>
#include <cstdint>
#include <cstring>
#include <immintrin.h>
extern "C" __m256 _ZGVdN8v_expf(__m256);

static float loss(const float* x, int64_t n, int64_t target, float smoothing, float weight) {
    if (target == -100) target = -1;
    float top = -INFINITY;
    bool nan = false;
    for (int64_t i = 0; i < n; i++) { top = x[i] > top ? x[i] : top; nan |= x[i] != x[i]; }
    if (nan) return NAN;
    const float shift = std::isinf(top) ? 0.f : top;
    __m256 acc = _mm256_setzero_ps();
    float lin[8] = {}, tail = 0, line = 0;
    int64_t i = 0;
    for (; i + 8 <= n; i += 8) {
        __m256 d = _mm256_sub_ps(_mm256_loadu_ps(x + i), _mm256_set1_ps(shift));
        acc = _mm256_add_ps(acc, _ZGVdN8v_expf(d));
        for (int l = 0; l < 8; l++) lin[l] += x[i + l] - shift;
    }
    for (; i < n; i++) { tail += std::exp(x[i] - shift); line += x[i] - shift; }
    float e[8];
    memcpy(e, &acc, 32);
    for (int l = 0; l < 8; l++) { tail += e[l]; line += lin[l]; }
    const float ln = std::log(tail);
    const float z = (ln + shift) * (ln + shift) * weight;          // logsumexp: inf stays inf
    if (target < 0) return z;                                      // ignored row
    if (std::isinf(top)) return NAN;                               // log_softmax of the row is NaN
    const float nll = ln - (x[target] - shift);
    const float smooth = (float)n * ln - line;
    return (1.f - smoothing) * nll + smoothing / (float)n * smooth + z;
}

extern "C" int rows(const float* x, const int64_t* t, float* out, float* mean, int64_t m, int64_t n, float s, float w) {
    for (int64_t i = 0; i < m; i++) if ((t[i] < 0 || t[i] >= n) && t[i] != -100) return 1;
    const int64_t half = m / 2;
#pragma omp parallel sections
    {
#pragma omp section
        for (int64_t i = 0; i < half; i++) out[i] = loss(x + i * n, n, t[i], s, w);
#pragma omp section
        for (int64_t i = half; i < m; i++) out[i] = loss(x + i * n, n, t[i], s, w);
    }
    double sum = 0;
    for (int64_t i = 0; i < m; i++) sum += out[i];
    *mean = (float)(sum / m);
    return 0;
}
"""


class ModelNew(nn.Module):
    def __init__(self, smoothing, weight):
        super().__init__()
        self.smoothing, self.weight = smoothing, weight
        d = tempfile.mkdtemp()
        with open(d + "/loss.cpp", "w") as f:
            f.write(CPP)
        subprocess.run(["g++", "-O3", "-mavx2", "-mfma", "-fopenmp", "-shared", "-fPIC", d + "/loss.cpp", "-o", d + "/loss.so", "-lmvec", "-lm"], check=True)
        self.rows = ctypes.CDLL(d + "/loss.so").rows
        self.rows.argtypes = [ctypes.c_void_p] * 4 + [ctypes.c_int64] * 2 + [ctypes.c_float] * 2

    def forward(self, logits, target):
        logits, target = logits.contiguous(), target.contiguous()
        m, n = logits.shape
        rows, mean = torch.empty(m), torch.empty(())
        if self.rows(logits.data_ptr(), target.data_ptr(), rows.data_ptr(), mean.data_ptr(), m, n, self.smoothing, self.weight):
            raise IndexError("Target is out of bounds.")
        return mean, rows
