"""Max pooling 3x3/2 as two one-dimensional passes; the line buffer lives on the C++ stack (alloca)."""
import ctypes
import functools
import subprocess
import tempfile
from pathlib import Path

import torch
import torch.nn as nn


@functools.cache
def native():
    code = r"""
    #include <alloca.h>
    #include <cmath>
    #include <cstddef>

    struct NanMax {
        inline float operator()(float a, float b) const { return (a > b || a != a) ? a : b; }   // b may be NaN: a > NaN is false
    };

    template <class Op>
    static void plane(const float* x, float* y, int H, int W, Op op) {
        const int OH = (H + 1) / 2, OW = (W + 1) / 2;
        float* line = static_cast<float*>(alloca(sizeof(float) * (W + 2)));
        line[0] = line[W + 1] = -INFINITY;
        for (int oy = 0; oy < OH; ++oy) {
            const float* mid = x + (size_t)2 * oy * W;
            const float* up = oy ? mid - W : mid;
            const float* down = 2 * oy + 1 < H ? mid + W : mid;
            for (int i = 0; i < W; ++i) line[i + 1] = op(op(up[i], mid[i]), down[i]);
            for (int ox = 0; ox < OW; ++ox) y[(size_t)oy * OW + ox] = op(op(line[2 * ox], line[2 * ox + 1]), line[2 * ox + 2]);
        }
    }

    extern "C" void pool(const float* x, float* y, int planes, int H, int W) {
        const size_t in = (size_t)H * W, out = (size_t)((H + 1) / 2) * ((W + 1) / 2);
        #pragma omp parallel for
        for (int p = 0; p < planes; ++p) plane(x + p * in, y + p * out, H, W, NanMax{});
    }
    """
    home = Path(tempfile.mkdtemp())
    (home / "pool.cpp").write_text(code)
    subprocess.run("g++ -O3 -march=native -fopenmp -fPIC -shared pool.cpp -o pool.so".split(), cwd=home, check=True)
    lib = ctypes.CDLL(str(home / "pool.so"))
    lib.pool.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int, ctypes.c_int, ctypes.c_int)
    lib.pool.restype = None
    return lib


class ModelNew(nn.Module):
    def forward(self, x):
        if not x.is_contiguous():
            x = x.contiguous()
        *lead, h, w = x.shape
        y = torch.empty(*lead, (h + 1) // 2, (w + 1) // 2)
        native().pool(x.data_ptr(), y.data_ptr(), x.numel() // (h * w), h, w)
        return y
