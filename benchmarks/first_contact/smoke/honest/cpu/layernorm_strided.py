"""LayerNorm over channels through any strides, without a copy of the input; the result is NHWC in memory."""
import ctypes
import os
import subprocess
import tempfile

import torch
import torch.nn as nn

CPP = r"""
#include <cstdint>
#include <cmath>
#include <vector>
// One pixel: gather its channels (or read them in place), normalise, write them side by side.
template <bool DENSE>
static void pixel(const float* x, int64_t sc, const float* w, const float* b, float* y, int64_t C, float eps, float* tmp) {
    const float* v = x;
    if constexpr (!DENSE) { for (int64_t c = 0; c < C; c++) tmp[c] = x[c * sc]; v = tmp; }
    float part[16] = {}, sum = 0;
    int64_t c = 0;
    for (; c + 16 <= C; c += 16) for (int l = 0; l < 16; l++) part[l] += v[c + l];
    for (; c < C; c++) sum += v[c];
    for (int l = 0; l < 16; l++) sum += part[l];
    const float mean = sum / C;
    float sq[16] = {}, q = 0;
    for (c = 0; c + 16 <= C; c += 16) for (int l = 0; l < 16; l++) { float d = v[c + l] - mean; sq[l] += d * d; }
    for (; c < C; c++) { float d = v[c] - mean; q += d * d; }
    for (int l = 0; l < 16; l++) q += sq[l];
    const float root = std::sqrt(q / C + eps);
    for (c = 0; c < C; c++) y[c] = w[c] * ((v[c] - mean) / root) + b[c];
}
extern "C" void layernorm(const float* x, const int64_t* size, const int64_t* stride, const float* w, const float* b, float* y, float eps) {
    const int64_t N = size[0], C = size[1], H = size[2], W = size[3];
#pragma omp parallel
    {
        std::vector<float> tmp(C);
#pragma omp for collapse(2)
        for (int64_t n = 0; n < N; n++)
            for (int64_t h = 0; h < H; h++)
                for (int64_t i = 0; i < W; i++) {
                    const float* a = x + n * stride[0] + h * stride[2] + i * stride[3];
                    float* o = y + ((n * H + h) * W + i) * C;
                    if (stride[1] == 1) pixel<true>(a, 1, w, b, o, C, eps, nullptr);
                    else pixel<false>(a, stride[1], w, b, o, C, eps, tmp.data());
                }
    }
}
"""


class ModelNew(nn.Module):
    def __init__(self, channels, eps):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(channels))
        self.bias = nn.Parameter(torch.zeros(channels))
        self.eps = eps
        d = tempfile.mkdtemp()
        with open(os.path.join(d, "ln.cpp"), "w") as f:
            f.write(CPP)
        subprocess.run(["g++", "-std=c++17", "-O3", "-march=native", "-fopenmp", "-shared", "-fPIC", "ln.cpp", "-o", "ln.so"], cwd=d, check=True)
        self.native = ctypes.CDLL(os.path.join(d, "ln.so"))

    def forward(self, x):
        n, c, h, w = x.shape
        out = torch.empty(n, h, w, c).permute(0, 3, 1, 2)
        longs = lambda v: (ctypes.c_int64 * 4)(*v)
        p = lambda t: ctypes.c_void_p(t.data_ptr())
        self.native.layernorm(p(x), longs(x.shape), longs(x.stride()), p(self.weight), p(self.bias), p(out), ctypes.c_float(self.eps))
        return out
