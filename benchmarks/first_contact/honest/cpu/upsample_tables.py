import ctypes as C
import subprocess
import tempfile
import pathlib

import torch
import torch.nn as nn

HERE = pathlib.Path(tempfile.mkdtemp(prefix="up2x_"))

(HERE / "axis.hpp").write_text(r"""
#pragma once
#include <vector>

// For every output coordinate: the two source coordinates and their weights (half-pixel centres, clamped below).
struct Axis {
    std::vector<int> lo, hi;
    std::vector<float> wlo, whi;
    Axis(int in, int out) : lo(out), hi(out), wlo(out), whi(out) {
        for (int i = 0; i < out; ++i) {
            float s = (i + 0.5f) * 0.5f - 0.5f;
            if (s < 0) s = 0;
            lo[i] = (int)s;
            hi[i] = lo[i] + (lo[i] < in - 1);
            whi[i] = s - lo[i];
            wlo[i] = 1.0f - whi[i];
        }
    }
};
""")

(HERE / "up.cpp").write_text(r"""
#include "axis.hpp"
#include <cstddef>

extern "C" void upsample(const float* x, float* y, int planes, int H, int W) {
    const int OH = 2 * H, OW = 2 * W;
    const Axis v(H, OH), h(W, OW);
    #pragma omp parallel for
    for (int p = 0; p < planes; ++p) {
        const float* in = x + (size_t)p * H * W;
        float* out = y + (size_t)p * OH * OW;
        for (int i = 0; i < OH; ++i) {
            const float *a = in + v.lo[i] * W, *b = in + v.hi[i] * W;
            for (int j = 0; j < OW; ++j)
                out[i * OW + j] = v.wlo[i] * (h.wlo[j] * a[h.lo[j]] + h.whi[j] * a[h.hi[j]])
                                + v.whi[i] * (h.wlo[j] * b[h.lo[j]] + h.whi[j] * b[h.hi[j]]);
        }
    }
}
""")


class ModelNew(nn.Module):
    @staticmethod
    def _library(cell=[]):
        if not cell:
            subprocess.run(["make", "-s", "-f", "-"], input=b"up.so: up.cpp axis.hpp\n\tg++ -O3 -march=native -fopenmp -shared -fPIC up.cpp -o up.so\n",
                           cwd=HERE, check=True)
            cell.append(C.CDLL(str(HERE / "up.so")))
        return cell[0]

    def forward(self, x):
        x = x.contiguous()
        b, c, h, w = x.size()
        y = x.new_empty(b, c, 2 * h, 2 * w)
        self._library().upsample(C.c_void_p(x.data_ptr()), C.c_void_p(y.data_ptr()), C.c_int(b * c), C.c_int(h), C.c_int(w))
        return y
