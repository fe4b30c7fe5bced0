"""CRF forward algorithm, one sequence per loop iteration, tags in the vector lanes."""
import ctypes
import os
import subprocess
import tempfile

import torch
from torch import nn

HEADER = r"""
#pragma once
#include <cmath>
#include <cstdint>
#include <cstring>
// expf for arguments <= 0 (or NaN): branch-free for the vectoriser
static inline float exp_neg(float x) {
    float c = x < -103.97f ? -103.97f : x;
    float k = std::nearbyint(c * 1.442695041f);
    float r = std::fma(k, -0.693145752f, c);
    r = std::fma(k, -1.42860677e-6f, r);
    float p = 1.f / 5040;
    p = std::fma(p, r, 1.f / 720); p = std::fma(p, r, 1.f / 120); p = std::fma(p, r, 1.f / 24);
    p = std::fma(p, r, 1.f / 6);   p = std::fma(p, r, 0.5f);      p = std::fma(p, r, 1.f); p = std::fma(p, r, 1.f);
    int32_t n = (int32_t)(k == k ? k : 0.f);
    int32_t a = n / 2, b = n - a;
    int32_t ia = (a + 127) << 23, ib = (b + 127) << 23;
    float fa, fb;
    memcpy(&fa, &ia, 4); memcpy(&fb, &ib, 4);
    return x != x ? x : x < -103.97f ? 0.f : p * fa * fb;
}
"""
MAIN = r"""
#include "vexp.h"
#include <vector>
extern "C" void crf(const float* em, const float* start, const float* end, const float* tr, float* out, int64_t B, int64_t T, int64_t K) {
#pragma omp parallel
    {
        std::vector<float> mem(4 * K);
        float *al = mem.data(), *mx = al + K, *sm = mx + K, *sh = sm + K;
#pragma omp for
        for (int64_t b = 0; b < B; b++) {
            const float* e = em + b * T * K;
            for (int64_t j = 0; j < K; j++) al[j] = start[j] + e[j];
            for (int64_t t = 1; t < T; t++) {
                const float* et = e + t * K;
                for (int64_t j = 0; j < K; j++) { mx[j] = -INFINITY; sm[j] = 0.f; }
                for (int64_t i = 0; i < K; i++)
                    for (int64_t j = 0; j < K; j++) {
                        float s = al[i] + tr[i * K + j] + et[j];
                        mx[j] = mx[j] > s ? mx[j] : s != s ? mx[j] : s;
                    }
                for (int64_t j = 0; j < K; j++) sh[j] = std::fabs(mx[j]) == INFINITY ? 0.f : mx[j];
                for (int64_t i = 0; i < K; i++)
                    for (int64_t j = 0; j < K; j++) {
                        float s = al[i] + tr[i * K + j] + et[j];
                        float d = s - sh[j];
                        sm[j] += d > 0.f ? INFINITY : exp_neg(d);      // positive only for +inf
                    }
                for (int64_t j = 0; j < K; j++) al[j] = std::log(sm[j]) + sh[j];
            }
            float m = -INFINITY, s = 0;
            for (int64_t j = 0; j < K; j++) { al[j] += end[j]; m = al[j] > m ? al[j] : m; }
            if (std::fabs(m) == INFINITY) m = 0;
            for (int64_t j = 0; j < K; j++) s += std::exp(al[j] - m);
            out[b] = std::log(s) + m;
        }
    }
}
"""


class ModelNew(nn.Module):
    def __init__(self, tags):
        super().__init__()
        self.start = nn.Parameter(torch.randn(tags) * 0.1)
        self.end = nn.Parameter(torch.randn(tags) * 0.1)
        self.transitions = nn.Parameter(torch.randn(tags, tags) * 0.1)
        self.build()

    def build(self):
        d = tempfile.mkdtemp()
        for name, text in (("vexp.h", HEADER), ("crf.cpp", MAIN)):
            with open(os.path.join(d, name), "w") as f:
                f.write(text)
        cmd = f"g++ -O3 -march=native -fno-math-errno -fno-trapping-math -fopenmp -shared -fPIC -I{d} {d}/crf.cpp -o {d}/crf.so"
        subprocess.run(cmd.split(), check=True)
        self.crf = ctypes.CDLL(f"{d}/crf.so").crf

    def forward(self, emissions):
        ts = [t.contiguous() for t in (emissions, self.start, self.end, self.transitions)]
        out = torch.empty(emissions.shape[0])
        self.crf(*[ctypes.c_void_p(t.data_ptr()) for t in ts], ctypes.c_void_p(out.data_ptr()), *map(ctypes.c_int64, emissions.shape))
        return out
