"""Two layers as a graph of OpenMP tasks with dependences: a block of rows goes down as soon as it has been up. The
weights are transposed at the start of each call into a region that the library keeps."""
import ctypes
import os
import subprocess
import tempfile

import torch
import torch.nn as nn

CODE = r"""
#include <cstdint>
#include <cstdlib>
#include <cstring>
constexpr int64_t R = 8, P = 32;

// out[rows][columns] (+)= in[rows][inner] * w[inner][columns], with w in panels of P columns
static void multiply(const float* in, const float* w, float* out, int64_t rows, int64_t inner, int64_t columns,
                     const float* bias, const float* plus, bool relu) {
    for (int64_t c = 0; c < columns; c += P) {
        float s[R][P] = {};
        const float* panel = w + c * inner;
        if (rows == R)
            for (int64_t k = 0; k < inner; ++k)
                for (int64_t r = 0; r < R; ++r)
                    for (int64_t j = 0; j < P; ++j) s[r][j] += in[r * inner + k] * panel[k * P + j];
        else
            for (int64_t k = 0; k < inner; ++k)
                for (int64_t r = 0; r < rows; ++r)
                    for (int64_t j = 0; j < P; ++j) s[r][j] += in[r * inner + k] * panel[k * P + j];
        const int64_t n = columns - c < P ? columns - c : P;
        for (int64_t r = 0; r < rows; ++r)
            for (int64_t j = 0; j < n; ++j) {
                float v = s[r][j];
                if (bias) v += bias[c + j];
                if (relu) v = v < 0 ? 0 : v;
                if (plus) v += plus[r * columns + c + j];
                out[r * columns + c + j] = v;
            }
    }
}
static void panels(const float* w, float* to, int64_t inner, int64_t columns, int64_t c) {    // w[columns][inner]
    for (int64_t k = 0; k < inner; ++k)
        for (int64_t j = 0; j < P; ++j) to[c * inner + k * P + j] = c + j < columns ? w[(c + j) * inner + k] : 0;
}

extern "C" int mlp(const float* x, const float* up, const float* bias, const float* down, float* y, int64_t rows,
                   int64_t width, int64_t hidden, int threads) {
    static float* region = nullptr;
    static size_t room = 0;
    const int64_t hp = (hidden + P - 1) / P * P, wp = (width + P - 1) / P * P;
    const size_t need = hp * width + wp * hidden + rows * hidden;
    if (need > room) {
        free(region);
        region = (float*)aligned_alloc(64, (need * 4 + 63) / 64 * 64);
        room = region ? need : 0;
        if (!region) return 1;
    }
    float *u = region, *d = u + hp * width, *h = d + wp * hidden;
#pragma omp parallel num_threads(threads)
#pragma omp single
    {
#pragma omp taskgroup
        {
            for (int64_t c = 0; c < hp; c += P)
#pragma omp task firstprivate(c)
                panels(up, u, width, hidden, c);
            for (int64_t c = 0; c < wp; c += P)
#pragma omp task firstprivate(c)
                panels(down, d, hidden, width, c);
        }
        for (int64_t r = 0; r < rows; r += R) {
            const int64_t n = rows - r < R ? rows - r : R;
            float* block = h + r * hidden;
#pragma omp task depend(out : block[0]) firstprivate(r, n, block)
            multiply(x + r * width, u, block, n, width, hidden, bias, nullptr, true);
#pragma omp task depend(in : block[0]) firstprivate(r, n, block)
            multiply(block, d, y + r * width, n, hidden, width, nullptr, x + r * width, false);
        }
    }
    return 0;
}
"""


class ModelNew(nn.Module):
    def __init__(self, width, hidden):
        super().__init__()
        self.up = nn.Linear(width, hidden)
        self.down = nn.Linear(hidden, width, bias=False)
        handle, so = tempfile.mkstemp(".so")
        os.close(handle)
        subprocess.run(["g++", "-O3", "-march=native", "-ffp-contract=fast", "-fopenmp", "-shared", "-fPIC", "-xc++", "-", "-o", so],
                       input=CODE.encode(), check=True)
        self.mlp = ctypes.CDLL(so).mlp
        self.mlp.argtypes = [ctypes.c_void_p] * 5 + [ctypes.c_int64] * 3 + [ctypes.c_int]

    def forward(self, x):
        x = x.contiguous()
        y = torch.empty_like(x)
        if self.mlp(x.data_ptr(), self.up.weight.data_ptr(), self.up.bias.data_ptr(), self.down.weight.data_ptr(),
                    y.data_ptr(), x.shape[0], x.shape[1], self.up.out_features, torch.get_num_threads()):
            raise MemoryError
        return y
