import ctypes, os, subprocess, tempfile
import torch
import torch.nn as nn


def _cc(src, cls=ctypes.CDLL):
    d = tempfile.mkdtemp()
    c, o, so = (os.path.join(d, n) for n in ("k.cpp", "k.o", "k.so"))
    open(c, "w").write(src)
    subprocess.check_call(["g++", "-O3", "-march=native", "-ffast-math", "-fopenmp", "-fPIC", "-c", c, "-o", o])
    subprocess.check_call(["g++", "-shared", "-fopenmp", o, "-o", so, "-ldl"])
    return cls(so)


def _p(t):
    return ctypes.c_void_p(t.data_ptr())


SRC = r"""
#include <math.h>
#include <vector>
extern "C" void context(const float* x, const float* w, float* y, int n, int c, int hw) {
    std::vector<float> m(n * c);
    #pragma omp parallel for
    for (int p = 0; p < n * c; p++) {
        float s = 0.f;
        for (int i = 0; i < hw; i++) s += x[(long)p * hw + i];
        m[p] = s / hw;
    }
    for (int i = 0; i < n; i++)
        for (int j = 0; j < c; j++) {
            float s = 0.f;
            for (int k = 0; k < c; k++) s += m[i * c + k] * w[j * c + k];
            y[i * c + j] = 1.f / (1.f + expf(-s));
        }
}
"""
_lib = _cc(SRC)


class ModelNew(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.w = nn.Parameter(torch.empty(c, c))

    def forward(self, x):
        if x.dtype != torch.float32 or x.dim() != 4 or not x.is_contiguous():
            raise ValueError("unsupported input")
        n, c, h, w = x.shape
        y = torch.empty(n, c)
        _lib.context(_p(x), _p(self.w), _p(y), n, c, h * w)
        return y.as_strided((n, c, h, w), (c, 1, 0, 0))
