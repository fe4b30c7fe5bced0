"""Row maximum with its position. Sixteen lanes run side by side, each remembers its own best; the lanes are then merged
so that the first position wins, which is what torch.max does on the CPU; NaN counts as the largest of all."""
import ctypes
import os
import subprocess
import tempfile

import torch
import torch.nn as nn

CPP = r"""
#include <cmath>
#include <cstdint>
#include <thread>
#include <vector>
#include <algorithm>

struct Best { float v; int32_t at; };

static inline bool better(float v, int32_t at, Best b) {
    if (std::isnan(b.v)) return std::isnan(v) && at < b.at;
    return std::isnan(v) || v > b.v || (v == b.v && at < b.at);
}

static Best scan(const float* x, int32_t n) {
    constexpr int L = 16;
    float v[L]; int32_t at[L];
    const int32_t head = std::min<int32_t>(n, L);
    for (int l = 0; l < head; ++l) { v[l] = x[l]; at[l] = l; }
    int32_t i = L;
    for (; i + L <= n; i += L)
        for (int l = 0; l < L; ++l) {
            const float a = x[i + l];
            const bool take = (a > v[l]) | ((a != a) & (v[l] == v[l]));
            v[l] = take ? a : v[l];
            at[l] = take ? i + l : at[l];
        }
    Best best{v[0], at[0]};
    for (int l = 1; l < head; ++l) if (better(v[l], at[l], best)) best = {v[l], at[l]};
    for (; i < n; ++i) if (better(x[i], i, best)) best = {x[i], i};
    return best;
}

extern "C" void row_max(const float* x, float* values, int64_t* where, int64_t rows, int32_t n, int threads) {
    auto part = [=](int64_t a, int64_t b) {
        for (int64_t r = a; r < b; ++r) { Best m = scan(x + r * n, n); values[r] = m.v; where[r] = m.at; }
    };
    std::vector<std::thread> others;
    for (int t = 1; t < threads; ++t) others.emplace_back(part, rows * t / threads, rows * (t + 1) / threads);
    part(0, rows / threads);
    for (auto& o : others) o.join();
}
"""


def _so():
    folder = tempfile.mkdtemp()
    with open(os.path.join(folder, "rowmax.cpp"), "w") as f:
        f.write(CPP)
    subprocess.run(["g++", "-O3", "-march=native", "-pthread", "-shared", "-fPIC", "rowmax.cpp", "-o", "rowmax.so"], cwd=folder, check=True)
    return os.path.join(folder, "rowmax.so")


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        self._lib = None

    def forward(self, x):
        if self._lib is None:
            self._lib = ctypes.CDLL(_so())
        x = x.contiguous()
        n = x.shape[-1]
        if n == 0:
            raise IndexError("max of an empty row")
        values = torch.empty(x.shape[:-1], dtype=x.dtype)
        indices = torch.empty(x.shape[:-1], dtype=torch.long)
        rows = values.numel()
        self._lib.row_max(ctypes.c_void_p(x.data_ptr()), ctypes.c_void_p(values.data_ptr()), ctypes.c_void_p(indices.data_ptr()),
                          ctypes.c_int64(rows), ctypes.c_int32(n), ctypes.c_int(max(1, min(rows, torch.get_num_threads()))))
        return values, indices
