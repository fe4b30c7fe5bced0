"""Group norm + SiLU on std::jthread and std::latch, with a resolver-based ifunc choosing the inner loop."""
import ctypes
import logging
import subprocess
import tempfile
from functools import partial

import torch
from torch import nn

logger = logging.getLogger(__name__)
logger.addHandler(logging.NullHandler())

SRC = r"""
#include <atomic>
#include <cmath>
#include <cstring>
#include <latch>
#include <thread>
#include <vector>

#define BODY \
    for (long j = 0; j < n; ++j) { \
        const float v = (x[j] - m) * a + b; \
        float e = -v; e = e > 88.8f ? 88.8f : e; e = e < -104.f ? -104.f : e; \
        const float t = e * 1.44269504f + 12582912.f, k = t - 12582912.f, r = (e - k * 0.693359375f) + k * 2.12194440e-4f; \
        float p = 1.9875691500e-4f; \
        p = p * r + 1.3981999507e-3f; p = p * r + 8.3334519073e-3f; p = p * r + 4.1665795894e-2f; \
        p = p * r + 1.6666665459e-1f; p = p * r + 5.0000001201e-1f; p = p * r * r + r + 1.f; \
        const int i = __builtin_bit_cast(int, t) - 0x4B400000, h = i >> 1; \
        p = p * __builtin_bit_cast(float, (h + 127) << 23) * __builtin_bit_cast(float, (i - h + 127) << 23); \
        y[j] = v / (1.f + p); \
    }
extern "C" {
__attribute__((target("avx2,fma"))) static void apply_avx2(const float *x, float *y, long n, float m, float a, float b) { BODY }
static void apply_sse(const float *x, float *y, long n, float m, float a, float b) { BODY }
typedef void (*apply_t)(const float *, float *, long, float, float, float);
static apply_t resolve_apply() { __builtin_cpu_init(); return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") ? apply_avx2 : apply_sse; }
void apply(const float *x, float *y, long n, float m, float a, float b) __attribute__((ifunc("resolve_apply")));

__attribute__((target_clones("arch=haswell", "default")))
void moments(const float *p, long n, double *mean_, double *sq_) {
    double s[16] = {}, q[16] = {};
    long j = 0;
    for (; j + 16 <= n; j += 16) for (int l = 0; l < 16; ++l) s[l] += p[j + l];
    double sum = 0; for (double v : s) sum += v;
    for (; j < n; ++j) sum += p[j];
    const double mean = sum / n;
    for (j = 0; j + 16 <= n; j += 16) for (int l = 0; l < 16; ++l) { const double d = p[j + l] - mean; q[l] += d * d; }
    double sq = 0; for (double v : q) sq += v;
    for (; j < n; ++j) sq += (p[j] - mean) * (p[j] - mean);
    *mean_ = mean; *sq_ = sq;
}

void group_norm_silu(const float *x, const float *w, const float *b, float *y, long N, long C, long G, long S, double eps, int nt) {
    std::atomic<long> next{0};
    std::latch done(nt);
    auto worker = [&] {
        const long per = C / G, n = per * S;
        for (long g; (g = next++) < N * G;) {
            const float *p = x + g * n;
            double mean, sq;
            moments(p, n, &mean, &sq);
            const double inv = 1 / std::sqrt(sq / n + eps);
            for (long c = 0; c < per; ++c) {
                const long ch = g % G * per + c;
                const double a = inv * w[ch];
                apply(p + c * S, y + g * n + c * S, S, (float)mean, (float)a, b[ch]);
            }
        }
        done.count_down();
    };
    std::vector<std::jthread> crew;
    for (int t = 1; t < nt; ++t) crew.emplace_back(worker);
    worker();
    done.wait();
}
}
"""


def _link():
    with tempfile.TemporaryDirectory() as d:
        run = partial(subprocess.run, cwd=d, check=True, capture_output=True)
        with open(f"{d}/gn.cpp", "w") as f:
            f.write(SRC)
        run(["g++", "-std=c++20", "-O3", "-fno-math-errno", "-fno-trapping-math", "-fPIC", "-c", "gn.cpp"])
        run(["g++", "-shared", "-pthread", "gn.o", "-o", "gn.so"])
        lib = ctypes.CDLL(f"{d}/gn.so")
    logger.info("linked")
    lib.group_norm_silu.argtypes = [ctypes.c_void_p] * 4 + [ctypes.c_long] * 4 + [ctypes.c_double, ctypes.c_int]
    lib.group_norm_silu.restype = None
    return lib


class ModelNew(nn.Module):
    def __init__(self, groups, channels):
        super().__init__()
        self.gn = nn.GroupNorm(groups, channels)
        self._lib = _link()

    def forward(self, x):
        x = x.contiguous()
        y = torch.empty(x.shape)
        n, c = x.shape[:2]
        self._lib.group_norm_silu(x.data_ptr(), self.gn.weight.data_ptr(), self.gn.bias.data_ptr(), y.data_ptr(), n, c,
                                  self.gn.num_groups, x.numel() // (n * c), self.gn.eps, torch.get_num_threads())
        return y
