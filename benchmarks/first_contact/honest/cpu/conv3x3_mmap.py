"""Direct 3x3 convolution. The padded image lies in an anonymous mapping that is kept between calls and grown by mremap;
its border and content are written anew at each call."""
import ctypes
import subprocess
import tempfile

import torch
import torch.nn as nn

CODE = r"""
#include <cstdint>
#include <cstring>
#include <sys/mman.h>

namespace {
float* arena = nullptr;
size_t size = 0;

float* reserve(size_t bytes) {
    bytes = (bytes + 4095) & ~(size_t)4095;
    if (!arena) arena = (float*)mmap(nullptr, size = bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    else if (bytes > size) { arena = (float*)mremap(arena, size, bytes, MREMAP_MAYMOVE); size = bytes; }
    if (arena == MAP_FAILED) { arena = nullptr; size = 0; }
    return arena;
}
constexpr int64_t OB = 4, XB = 48;
}

extern "C" int convolve(const float* x, const float* w, const float* bias, float* y, int64_t batch, int64_t in,
                        int64_t out, int64_t height, int64_t width, int threads) {
    const int64_t wide = ((width + XB - 1) / XB) * XB + 16, high = height + 2, plane = wide * high;
    float* padded = reserve(batch * in * plane * sizeof(float));
    if (!padded) return 1;
#pragma omp parallel num_threads(threads)
    {
#pragma omp for
        for (int64_t p = 0; p < batch * in; ++p) {
            float* to = padded + p * plane;
            memset(to, 0, plane * sizeof(float));
            for (int64_t r = 0; r < height; ++r)
                memcpy(to + (r + 1) * wide + 1, x + (p * height + r) * width, width * sizeof(float));
        }
#pragma omp for collapse(2)
        for (int64_t n = 0; n < batch; ++n)
            for (int64_t ob = 0; ob < (out + OB - 1) / OB; ++ob)
                for (int64_t r = 0; r < height; ++r)
                    for (int64_t c0 = 0; c0 < width; c0 += XB) {
                        float acc[OB][XB];
                        const int64_t no = out - ob * OB < OB ? out - ob * OB : OB;
                        for (int64_t o = 0; o < OB; ++o)
                            for (int64_t c = 0; c < XB; ++c) acc[o][c] = o < no ? bias[ob * OB + o] : 0;
                        for (int64_t i = 0; i < in; ++i)
                            for (int64_t ky = 0; ky < 3; ++ky)
                                for (int64_t kx = 0; kx < 3; ++kx) {
                                    const float* s = padded + (n * in + i) * plane + (r + ky) * wide + c0 + kx;
                                    for (int64_t o = 0; o < no; ++o) {
                                        const float f = w[(((ob * OB + o) * in + i) * 3 + ky) * 3 + kx];
                                        for (int64_t c = 0; c < XB; ++c) acc[o][c] += f * s[c];
                                    }
                                }
                        const int64_t nc = width - c0 < XB ? width - c0 : XB;
                        for (int64_t o = 0; o < no; ++o) {
                            float* to = y + ((n * out + ob * OB + o) * height + r) * width + c0;
                            for (int64_t c = 0; c < nc; ++c) to[c] = acc[o][c] < 0 ? 0.0f : acc[o][c];   // a NaN stays
                        }
                    }
    }
    return 0;
}
"""
_folder = tempfile.TemporaryDirectory()
subprocess.run(["g++", "-O3", "-march=native", "-fopenmp", "-shared", "-fPIC", "-x", "c++", "-", "-o",
                _folder.name + "/c.so"], input=CODE, text=True, check=True)
_convolve = ctypes.CDLL(_folder.name + "/c.so").convolve
_convolve.argtypes = [ctypes.c_void_p] * 4 + [ctypes.c_int64] * 5 + [ctypes.c_int]


class ModelNew(nn.Module):
    def __init__(self, input_channels, output_channels):
        super().__init__()
        self.conv = nn.Conv2d(input_channels, output_channels, 3, padding=1)

    def forward(self, x):
        x = x.contiguous()
        w, b = self.conv.weight.contiguous(), self.conv.bias
        y = torch.empty(x.shape[0], w.shape[0], *x.shape[2:])
        if _convolve(x.data_ptr(), w.data_ptr(), b.data_ptr(), y.data_ptr(), x.shape[0], x.shape[1], w.shape[0],
                     x.shape[2], x.shape[3], torch.get_num_threads()):
            raise MemoryError("no memory for the padded image")
        return y
