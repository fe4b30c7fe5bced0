"""Masked attention that skips what the mask hides, except where V holds an infinity or a NaN: there PyTorch's 0 * inf
is a NaN, and so the long way is taken for that head. The mask is read from the buffer at every call."""
import ctypes
import os
import subprocess
import tempfile

import torch
import torch.nn as nn

CXX = r"""
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>
#include <limits>

static inline float exp_(float x) {                    // x <= 0 or NaN
    x = x < -105.f ? -105.f : x;
    float n = __builtin_rintf(x * 1.44269504f);
    float r = __builtin_fmaf(n, -0.693145752f, x);
    r = __builtin_fmaf(n, -1.42860677e-6f, r);
    float p = 1.9875691500e-4f;
    p = __builtin_fmaf(p, r, 1.3981999507e-3f);
    p = __builtin_fmaf(p, r, 8.3334519073e-3f);
    p = __builtin_fmaf(p, r, 4.1665795894e-2f);
    p = __builtin_fmaf(p, r, 1.6666665459e-1f);
    p = __builtin_fmaf(p, r, 5.0000001201e-1f);
    p = __builtin_fmaf(p, r * r, r) + 1.f;
    int k = (int)n, h = k >> 1;
    union { int32_t i; float f; } a, b;
    a.i = (h + 127) << 23; b.i = (k - h + 127) << 23;
    return p * a.f * b.f;
}

extern "C" void attention(const float* q, const float* k, const float* v, const unsigned char* mask, float* out,
                          int64_t heads, int64_t length, int64_t depth, int threads) {
    const float root = (float)std::sqrt((double)depth), inf = std::numeric_limits<float>::infinity();
    std::vector<int64_t> reach(length);
    for (int64_t i = 0; i < length; ++i) {
        int64_t end = length;
        while (end > 0 && mask[i * length + end - 1]) --end;
        reach[i] = end;
    }
#pragma omp parallel for num_threads(threads) schedule(dynamic)
    for (int64_t head = 0; head < heads; ++head) {
        static thread_local std::vector<float> scratch;         // grows to the largest call and stays
        scratch.resize(length * depth + length + depth);
        float *kt = scratch.data(), *s = kt + length * depth, *acc = s + length;
        const float *Q = q + head * length * depth, *K = k + head * length * depth, *V = v + head * length * depth;
        for (int64_t j = 0; j < length; ++j)
            for (int64_t d = 0; d < depth; ++d) kt[d * length + j] = K[j * depth + d];
        uint32_t poison = 0;
        for (int64_t e = 0; e < length * depth; ++e) {
            uint32_t u; memcpy(&u, V + e, 4);
            poison |= (u & 0x7f800000u) == 0x7f800000u;
        }
        for (int64_t i = 0; i < length; ++i) {
            const int64_t n = reach[i];
            for (int64_t j = 0; j < n; ++j) s[j] = 0;
            for (int64_t d = 0; d < depth; ++d) {
                const float w = Q[i * depth + d];
                const float* column = kt + d * length;
                for (int64_t j = 0; j < n; ++j) s[j] += w * column[j];
            }
            float top = -inf;
            for (int64_t j = 0; j < n; ++j) {
                s[j] = mask[i * length + j] ? -inf : s[j] / root;
                top = s[j] > top ? s[j] : top;
            }
            float lane[16] = {};
            int64_t j = 0;
            for (; j + 16 <= n; j += 16)
                for (int l = 0; l < 16; ++l) lane[l] += s[j + l] = exp_(s[j + l] - top);
            for (; j < n; ++j) lane[0] += s[j] = exp_(s[j] - top);
            float sum = 0;
            for (float l : lane) sum += l;
            for (int64_t d = 0; d < depth; ++d) acc[d] = 0;
            for (int64_t j = 0; j < n; ++j) {
                const float p = s[j] / sum;
                for (int64_t d = 0; d < depth; ++d) acc[d] += p * V[j * depth + d];
            }
            if (poison || n == 0) {
                const float zero = n == 0 ? std::numeric_limits<float>::quiet_NaN() : sum != sum ? sum : 0.f;
                for (int64_t j = n; j < length || (n == 0 && j == 0); ++j)
                    for (int64_t d = 0; d < depth; ++d) acc[d] += zero * V[j * depth + d];
            }
            memcpy(out + (head * length + i) * depth, acc, depth * sizeof(float));
        }
    }
}
"""

with tempfile.TemporaryDirectory() as _folder:
    _so = os.path.join(_folder, "attention.so")
    subprocess.run(["g++", "-x", "c++", "-", "-O3", "-march=native", "-fno-trapping-math", "-fno-math-errno",
                    "-fopenmp", "-fPIC", "-shared", "-o", _so], input=CXX.encode(), check=True)
    _attention = ctypes.CDLL(_so).attention        # mapped: the folder may go
_attention.argtypes = [ctypes.c_void_p] * 5 + [ctypes.c_int64] * 3 + [ctypes.c_int]
_attention.restype = None


class ModelNew(nn.Module):
    def __init__(self, length):
        super().__init__()
        self.register_buffer("mask", torch.ones(length, length, dtype=torch.bool).triu(1), persistent=False)

    def forward(self, q, k, v):
        q, k, v, mask = q.contiguous(), k.contiguous(), v.contiguous(), self.mask.contiguous()
        out = torch.empty_like(q)
        length, depth = q.shape[-2:]
        assert mask.shape == (length, length)
        _attention(q.data_ptr(), k.data_ptr(), v.data_ptr(), mask.data_ptr(), out.data_ptr(),
                   q.numel() // (length * depth), length, depth, torch.get_num_threads())
        return out
