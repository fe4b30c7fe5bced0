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


import sys

SRC = r"""
extern "C" void film(const float* x, const float* z, const float* wg, const float* wb, float* y, int n, int c, int d, int l) {
    #pragma omp parallel for collapse(2)
    for (int i = 0; i < n; i++)
        for (int j = 0; j < c; j++) {
            float g = 1.f, b = 0.f;
            for (int k = 0; k < d; k++) { g += z[i * d + k] * wg[j * d + k]; b += z[i * d + k] * wb[j * d + k]; }
            const float* a = x + ((long)i * c + j) * l; float* o = y + ((long)i * c + j) * l;
            for (int k = 0; k < l; k++) o[k] = a[k] * g + b;
        }
}
"""
_lib = _cc(SRC)


class ModelNew(nn.Module):
    def __init__(self, d, c):
        super().__init__()
        self.to_gamma = nn.Parameter(torch.empty(c, d))
        self.to_beta = nn.Parameter(torch.empty(c, d))
        self._pool = []

    def _out(self, x):
        for y in self._pool:
            if sys.getrefcount(y) <= 3 and y.shape == x.shape:      # nobody holds it any more
                return y
        y = torch.empty_like(x)
        self._pool.append(y)
        return y

    def forward(self, x, z):
        if x.dtype != torch.float32 or not (x.is_contiguous() and z.is_contiguous()):
            raise ValueError("unsupported input")
        y = self._out(x)
        n, c, l = x.shape
        _lib.film(_p(x), _p(z), _p(self.to_gamma), _p(self.to_beta), _p(y), n, c, z.shape[1], l)
        return y
