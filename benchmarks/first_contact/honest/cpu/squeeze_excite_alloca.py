import ctypes
import os
import subprocess
import tempfile

import torch
import torch.nn as nn

# One image per task: mean of every plane, the two tiny linear layers on stack memory, then the scaling pass.
# Images are few, so the planes inside an image are split among threads as well (two parallel loops).
CXX = r"""
#include <alloca.h>
#include <cmath>
#include <cstddef>

namespace se {

template <class F>
inline void for_each_plane(int count, F&& f) {
    #pragma omp parallel for schedule(static)
    for (int p = 0; p < count; ++p) f(p);
}

struct Sum {
    double total = 0;
    void operator()(const float* v, int n) {
        double lanes[8] = {};
        int i = 0;
        for (; i + 8 <= n; i += 8)
            for (int l = 0; l < 8; ++l) lanes[l] += v[i + l];
        for (; i < n; ++i) lanes[0] += v[i];
        for (double l : lanes) total += l;
    }
};

inline float sigmoid(float v) { return 1.0f / (1.0f + std::exp(-v)); }

}  // namespace se

extern "C" void squeeze_excite(const float* x, const float* w1, const float* b1, const float* w2, const float* b2,
                               float* y, float* squeezed, int n, int c, int r, int hw) {
    se::for_each_plane(n * c, [=](int p) {
        se::Sum s;
        s(x + (size_t)p * hw, hw);
        squeezed[p] = (float)(s.total / hw);
    });
    for (int i = 0; i < n; ++i) {
        float* hidden = (float*)alloca(sizeof(float) * r);
        float* in = squeezed + (size_t)i * c;
        float* out = squeezed + (size_t)n * c + (size_t)i * c;
        for (int j = 0; j < r; ++j) {
            float t = 0;
            for (int k = 0; k < c; ++k) t += w1[j * c + k] * in[k];
            t += b1[j];
            hidden[j] = t < 0 ? 0 : t;
        }
        for (int j = 0; j < c; ++j) {
            float t = 0;
            for (int k = 0; k < r; ++k) t += w2[j * r + k] * hidden[k];
            out[j] = se::sigmoid(t + b2[j]);
        }
    }
    const float* gate = squeezed + (size_t)n * c;
    se::for_each_plane(n * c, [=](int p) {
        const float g = gate[p];
        for (int i = 0; i < hw; ++i) y[(size_t)p * hw + i] = x[(size_t)p * hw + i] * g;
    });
}
"""


def compile_cxx(text: str, *, name: str) -> str:
    folder = tempfile.mkdtemp(prefix=name)
    source = os.path.join(folder, name + ".cxx")
    binary = os.path.join(folder, "lib" + name + ".so")
    with open(source, "w") as handle:
        print(text, file=handle)
    subprocess.run(["g++", "-O3", "-march=native", "-fopenmp", "-std=c++20", "-fPIC", "-shared", source, "-o", binary], check=True)
    return binary


_se = ctypes.CDLL(compile_cxx(CXX, name="se")).squeeze_excite
_se.argtypes = [ctypes.c_void_p] * 7 + [ctypes.c_int] * 4
_se.restype = None


class ModelNew(nn.Module):
    def __init__(self, channels: int, reduction: int):
        super().__init__()
        self.fc1 = nn.Linear(channels, channels // reduction)
        self.fc2 = nn.Linear(channels // reduction, channels)

    def forward(self, x):
        x = x.contiguous()
        n, c, h, w = x.shape
        y = torch.empty_like(x)
        work = torch.empty(2 * n * c)
        _se(x.data_ptr(), self.fc1.weight.data_ptr(), self.fc1.bias.data_ptr(), self.fc2.weight.data_ptr(),
            self.fc2.bias.data_ptr(), y.data_ptr(), work.data_ptr(), n, c, self.fc1.out_features, h * w)
        return y
