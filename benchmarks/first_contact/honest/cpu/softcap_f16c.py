import ctypes
import os
import subprocess
import tempfile

import torch
import torch.nn as nn

# F16C conversions, float arithmetic, glibc's vector tanh; std::async shares the rows out and is waited for.
CPP = r"""
#include <immintrin.h>
#include <cmath>
#include <cstdint>
#include <future>
#include <vector>
extern "C" __m256 _ZGVdN8v_tanhf(__m256);
typedef uint16_t half;

static inline __m256 load(const half* p) { return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)p)); }

static void rows(const half* x, const half* bias, const half* scale, half* y, int64_t lo, int64_t hi, int64_t n, float cap) {
    const __m256 c = _mm256_set1_ps(cap);
    for (int64_t r = lo; r < hi; r++) {
        const __m256 s = _mm256_set1_ps(_cvtsh_ss(scale[r]));
        const half* a = x + r * n;
        half* o = y + r * n;
        int64_t i = 0;
        for (; i + 8 <= n; i += 8) {
            __m256 v = _mm256_div_ps(_mm256_add_ps(load(a + i), load(bias + i)), c);
            v = _mm256_mul_ps(_mm256_mul_ps(_ZGVdN8v_tanhf(v), c), s);
            _mm_storeu_si128((__m128i*)(o + i), _mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT));
        }
        for (; i < n; i++)
            o[i] = _cvtss_sh(std::tanh((_cvtsh_ss(a[i]) + _cvtsh_ss(bias[i])) / cap) * cap * _cvtsh_ss(scale[r]), _MM_FROUND_TO_NEAREST_INT);
    }
}

extern "C" void softcap(const half* x, const half* bias, const half* scale, half* y, int64_t m, int64_t n, float cap, int threads) {
    std::vector<std::future<void>> parts;
    for (int t = 1; t < threads; t++)
        parts.push_back(std::async(std::launch::async, rows, x, bias, scale, y, m * t / threads, m * (t + 1) / threads, n, cap));
    rows(x, bias, scale, y, 0, m / threads, n, cap);
    for (auto& p : parts) p.get();
}
"""


class ModelNew(nn.Module):
    def __init__(self, width, cap):
        super().__init__()
        self.cap = cap
        self.bias = nn.Parameter((torch.randn(width) * 0.1).half())
        d = tempfile.mkdtemp()
        with open(d + "/cap.cpp", "w") as f:
            f.write(CPP)
        subprocess.run(["g++", "-O2", "-mavx2", "-mfma", "-mf16c", "-shared", "-fPIC", "-pthread", d + "/cap.cpp", "-o", d + "/cap.so", "-lmvec", "-lm"], check=True)
        self.softcap = ctypes.CDLL(d + "/cap.so").softcap
        self.softcap.argtypes = [ctypes.c_void_p] * 4 + [ctypes.c_int64] * 2 + [ctypes.c_float, ctypes.c_int]

    def forward(self, x, scale):
        x, scale = x.contiguous(), scale.contiguous()
        y = torch.empty_like(x)
        self.softcap(x.data_ptr(), self.bias.data_ptr(), scale.data_ptr(), y.data_ptr(), x.shape[0], x.shape[1], self.cap, torch.get_num_threads())
        return y
