import ctypes
import os
import subprocess
import tempfile

import torch
import torch.nn as nn

# The padding's zeros are multiplied like everything else: 0 * inf is NaN in PyTorch, too.
CPP = r"""
#include <algorithm>
#include <cstdint>
#include <vector>
static thread_local std::vector<float> line, sums;

extern "C" void volume(const float* left, const float* right, float* out, int64_t B, int64_t C, int64_t H, int64_t W, int64_t D) {
#pragma omp parallel for collapse(2) schedule(static)
    for (int64_t b = 0; b < B; b++)
        for (int64_t y = 0; y < H; y++) {
            line.assign(D - 1 + W, 0.f);
            sums.assign(D * W, 0.f);
            for (int64_t c = 0; c < C; c++) {
                const int64_t at = ((b * C + c) * H + y) * W;
                std::copy(right + at, right + at + W, line.begin() + D - 1);
                for (int64_t d = 0; d < D; d++) {
                    float* __restrict s = sums.data() + d * W;
                    const float* __restrict l = left + at;
                    const float* __restrict r = line.data() + D - 1 - d;
                    for (int64_t x = 0; x < W; x++) s[x] += l[x] * r[x];
                }
            }
            for (int64_t d = 0; d < D; d++)
                for (int64_t x = 0; x < W; x++) out[((b * D + d) * H + y) * W + x] = sums[d * W + x] / (float)C;
        }
}
"""


class ModelNew(nn.Module):
    def __init__(self, disparities):
        super().__init__()
        self.disparities = disparities
        d = tempfile.mkdtemp()
        path = os.path.join(d, "volume")
        with open(path + ".cpp", "w") as f:
            f.write(CPP)
        subprocess.run(["g++", "-O3", "-march=native", "-fopenmp", "-shared", "-fPIC", path + ".cpp", "-o", path + ".so"], check=True)
        self.volume = ctypes.CDLL(path + ".so").volume
        self.volume.argtypes = [ctypes.c_void_p] * 3 + [ctypes.c_int64] * 5

    def forward(self, left, right):
        left, right = left.contiguous(), right.contiguous()
        b, c, h, w = left.shape
        out = left.new_empty(b, self.disparities, h, w)
        self.volume(left.data_ptr(), right.data_ptr(), out.data_ptr(), b, c, h, w, self.disparities)
        return out
