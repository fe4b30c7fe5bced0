"""Mish with a scale and shift per channel. Four ways to spread the planes over threads; the library times them itself with
std::chrono the first time a size turns up, then keeps the quickest for that size."""
import ctypes
import os
import subprocess
import tempfile

import torch
import torch.nn as nn

CPP = r"""
#include <chrono>
#include <cmath>
#include <cstdint>
#include <limits>
#include <map>
#include <mutex>
#include <tuple>
#include <omp.h>

namespace {

// tanh(log(1 + e)) = (e^2 + 2e) / (e^2 + 2e + 2)
inline float mish(float v) {
    if (v > 20.0f) return v;
    const float e = std::exp(v), n = e * (e + 2.0f);
    return v * (n / (n + 2.0f));
}

struct Work { const float *x, *gamma, *beta; float* y; int64_t planes, channels, n; };

inline void plane(const Work& w, int64_t p) {
    const float g = w.gamma[p % w.channels], b = w.beta[p % w.channels];
    for (int64_t i = p * w.n; i < (p + 1) * w.n; ++i) w.y[i] = mish(w.x[i]) * g + b;
}

void serial(const Work& w)  { for (int64_t p = 0; p < w.planes; ++p) plane(w, p); }
void blocks(const Work& w)  {
    #pragma omp parallel for schedule(static)
    for (int64_t p = 0; p < w.planes; ++p) plane(w, p);
}
void cyclic(const Work& w)  {
    #pragma omp parallel for schedule(static, 1)
    for (int64_t p = 0; p < w.planes; ++p) plane(w, p);
}
void dynamic(const Work& w) {
    #pragma omp parallel for schedule(dynamic, 4)
    for (int64_t p = 0; p < w.planes; ++p) plane(w, p);
}

using Variant = void (*)(const Work&);
constexpr Variant VARIANTS[] = {serial, blocks, cyclic, dynamic};

Variant choose(const Work& w) {
    using clock = std::chrono::steady_clock;
    static std::mutex guard;
    static std::map<std::tuple<int64_t, int64_t, int>, Variant> chosen;
    const auto key = std::make_tuple(w.planes, w.n, omp_get_max_threads());
    std::lock_guard<std::mutex> hold(guard);
    auto found = chosen.find(key);
    if (found != chosen.end()) return found->second;
    Variant best = VARIANTS[0];
    auto quickest = std::numeric_limits<int64_t>::max();
    for (Variant v : VARIANTS)
        for (int again = 0; again < 3; ++again) {
            const auto begin = clock::now();
            v(w);
            const int64_t took = (clock::now() - begin).count();
            if (took < quickest) { quickest = took; best = v; }
        }
    return chosen[key] = best;
}

}  // namespace

extern "C" void mish_affine(const float* x, const float* gamma, const float* beta, float* y, int64_t planes, int64_t channels, int64_t n) {
    const Work w{x, gamma, beta, y, planes, channels, n};
    choose(w)(w);
}
"""


def _library():
    if _library.it is None:
        folder = tempfile.mkdtemp(prefix="mish_")
        with open(os.path.join(folder, "mish.cpp"), "w") as f:
            f.write(CPP)
        subprocess.run(["g++", "-std=c++17", "-O3", "-march=native", "-fopenmp", "-shared", "-fPIC", "mish.cpp", "-o", "mish.so"], cwd=folder, check=True)
        _library.it = ctypes.CDLL(os.path.join(folder, "mish.so"))
        _library.it.mish_affine.argtypes = [ctypes.c_void_p] * 4 + [ctypes.c_int64] * 3
        _library.it.mish_affine.restype = None
    return _library.it


_library.it = None


class ModelNew(nn.Module):
    def __init__(self, channels: int):
        super().__init__()
        self.gamma = nn.Parameter(torch.ones(channels, 1, 1))
        self.beta = nn.Parameter(torch.zeros(channels, 1, 1))

    def forward(self, x):
        x = x.contiguous()
        y = torch.empty_like(x)
        n, c, h, w = x.shape
        _library().mish_affine(x.data_ptr(), self.gamma.data_ptr(), self.beta.data_ptr(), y.data_ptr(), n * c, c, h * w)
        return y
