"""Row softmax; exp from a table of 64 powers of two that the library's own constructor fills."""
import ctypes
import os
import subprocess
import tempfile

import torch
import torch.nn as nn

SOURCE = r"""
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

namespace {
alignas(64) float power[64];

__attribute__((constructor)) void fill() {
    for (int i = 0; i < 64; ++i) power[i] = (float)std::exp2(i / 64.0);
}

inline float bits(int32_t i) { float f; std::memcpy(&f, &i, 4); return f; }

// exp(x) for x <= 0, NaN stays NaN, -inf becomes an exact zero
inline float exponential(float x) {
    x = x < -105.0f ? -105.0f : x;
    float n = __builtin_rintf(x * 92.33248261893189f);
    int32_t k = (int32_t)n;
    float r = __builtin_fmaf(n, -0.010830402374267578f, x);      // ln2 / 64, upper bits
    r = __builtin_fmaf(n, -2.2321980e-08f, r);                   // and the rest, see below
    float p = __builtin_fmaf(r, __builtin_fmaf(r, __builtin_fmaf(r, 1.0f / 6, 0.5f), 1.0f), 1.0f);
    int32_t e = k >> 6, half = e >> 1;
    return power[k & 63] * p * bits((half + 127) << 23) * bits((e - half + 127) << 23);
}
}

extern "C" void softmax(const float* x, float* y, int64_t rows, int64_t columns, int threads) {
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t row = 0; row < rows; ++row) {
        const float* in = x + row * columns;
        float* out = y + row * columns;
        float lane[16];
        for (float& l : lane) l = -std::numeric_limits<float>::infinity();
        int64_t c = 0;
        for (; c + 16 <= columns; c += 16)
            for (int l = 0; l < 16; ++l) lane[l] = in[c + l] > lane[l] ? in[c + l] : lane[l];
        for (; c < columns; ++c) lane[0] = in[c] > lane[0] ? in[c] : lane[0];
        float largest = lane[0];
        for (float l : lane) largest = l > largest ? l : largest;
        float sums[16] = {};
        for (c = 0; c + 16 <= columns; c += 16)
            for (int l = 0; l < 16; ++l) {
                float e = exponential(in[c + l] - largest);
                out[c + l] = e;
                sums[l] += e;
            }
        for (; c < columns; ++c) sums[0] += out[c] = exponential(in[c] - largest);
        double sum = 0;
        for (float s : sums) sum += s;
        float inverse = (float)(1.0 / sum);
        for (c = 0; c < columns; ++c) out[c] *= inverse;
    }
}
"""
# ln2/64 in two floats, the first with few enough bits that n * first is exact
_LN2_64 = 0.6931471805599453 / 64
SOURCE = SOURCE.replace("-2.2321980e-08f", f"{-(_LN2_64 - 0.010830402374267578):.12e}f")


def build():
    folder = tempfile.mkdtemp(prefix="softmax_table_")
    source, library = os.path.join(folder, "k.cpp"), os.path.join(folder, "k.so")
    with open(source, "w") as file:
        file.write(SOURCE)
    subprocess.run(["g++", "-O3", "-march=native", "-fno-trapping-math", "-fno-math-errno", "-fopenmp", "-shared",
                    "-fPIC", source, "-o", library], check=True)
    return ctypes.CDLL(library)


_library = build()
_library.softmax.argtypes = [ctypes.c_void_p] * 2 + [ctypes.c_int64] * 2 + [ctypes.c_int]
_library.softmax.restype = None


class ModelNew(nn.Module):
    def forward(self, x):
        x = x.contiguous()
        y = torch.empty_like(x)
        columns = x.shape[-1]
        _library.softmax(x.data_ptr(), y.data_ptr(), x.numel() // columns, columns, torch.get_num_threads())
        return y
