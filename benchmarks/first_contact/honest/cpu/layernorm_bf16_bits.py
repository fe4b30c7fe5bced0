"""bfloat16 by integer arithmetic: a shift to read, an addition with the carry of ties-to-even to write."""
import ctypes
import subprocess
import tempfile

import torch
import torch.nn as nn

CODE = r"""
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>
typedef uint16_t bf16;

static inline float up(bf16 h) { uint32_t u = (uint32_t)h << 16; float f; memcpy(&f, &u, 4); return f; }
static inline bf16 down(float f) {
    uint32_t u; memcpy(&u, &f, 4);
    return f != f ? (bf16)0x7fc0 : (bf16)((u + 0x7fffu + ((u >> 16) & 1)) >> 16);
}

extern "C" void normalise(const bf16* x, const bf16* gain, const bf16* shift, bf16* y, int64_t rows, int64_t width,
                          double epsilon, int threads) {
#pragma omp parallel num_threads(threads)
    {
        std::vector<float> row(width);
#pragma omp for
        for (int64_t r = 0; r < rows; ++r) {
            double sum[8] = {}, square[8] = {};
            for (int64_t c = 0; c < width; ++c) row[c] = up(x[r * width + c]);
            int64_t c = 0;
            for (; c + 8 <= width; c += 8) for (int l = 0; l < 8; ++l) sum[l] += row[c + l];
            for (; c < width; ++c) sum[0] += row[c];
            double mean = (((sum[0] + sum[1]) + (sum[2] + sum[3])) + ((sum[4] + sum[5]) + (sum[6] + sum[7]))) / width;
            for (c = 0; c + 8 <= width; c += 8)
                for (int l = 0; l < 8; ++l) { double d = row[c + l] - mean; square[l] += d * d; }
            for (; c < width; ++c) { double d = row[c] - mean; square[0] += d * d; }
            double variance = 0;
            for (double s : square) variance += s;
            const double scale = 1.0 / std::sqrt(variance / width + epsilon);
            for (c = 0; c < width; ++c)
                y[r * width + c] = down((float)((row[c] - mean) * scale) * up(gain[c]) + up(shift[c]));
        }
    }
}
"""


def compile_c(text, name):
    folder = tempfile.mkdtemp()
    subprocess.run(["c++", "-O3", "-march=native", "-fno-trapping-math", "-fopenmp", "-shared", "-fPIC", "-xc++", "-",
                    "-o", f"{folder}/{name}.so"], input=text.encode(), check=True)
    return ctypes.CDLL(f"{folder}/{name}.so")


class ModelNew(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width, dtype=torch.bfloat16)
        self._run = compile_c(CODE, "layernorm").normalise
        self._run.argtypes = [ctypes.c_void_p] * 4 + [ctypes.c_int64] * 2 + [ctypes.c_double, ctypes.c_int]

    def forward(self, x):
        x = x.contiguous()
        y = torch.empty_like(x)
        width = x.shape[-1]
        self._run(x.data_ptr(), self.norm.weight.data_ptr(), self.norm.bias.data_ptr(), y.data_ptr(),
                  x.numel() // width, width, self.norm.eps, torch.get_num_threads())
        return y
