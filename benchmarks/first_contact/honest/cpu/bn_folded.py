"""Batch norm folded into one multiply-add per element.

scale = weight / sqrt(var + eps), shift = bias - mean * scale are made by C code from the four vectors, when one of them
is new (storage address or version counter).
"""
import ctypes
import subprocess
import tempfile
from os import path

import torch
from torch import Tensor, nn

_CODE = r"""
#include <math.h>
#include <stddef.h>

void fold(const float *w, const float *b, const float *mean, const float *var, double eps, double *scale, double *shift, int c) {
    for (int i = 0; i < c; ++i) {
        scale[i] = w[i] / sqrt((double)var[i] + eps);
        shift[i] = b[i] - mean[i] * scale[i];
    }
}

/* double inside: x * scale and shift may cancel (large mean, small variance) */
void apply(const float *x, const float *skip, float *y, const double *scale, const double *shift, long planes, int c, long hw) {
#pragma omp parallel for
    for (long p = 0; p < planes; ++p) {
        const double k = scale[p % c], d = shift[p % c];
        const float *a = x + p * hw, *s = skip + p * hw;
        float *o = y + p * hw;
        for (long i = 0; i < hw; ++i) {
            float v = (float)(a[i] * k + d) + s[i];
            o[i] = v < 0.0f ? 0.0f : v;
        }
    }
}
"""


def _load() -> ctypes.CDLL:
    d = tempfile.mkdtemp()
    c = path.join(d, "bn.c")
    with open(c, "w") as f:
        f.write(_CODE)
    so = path.join(d, "bn.so")
    subprocess.run(["gcc", "-O3", "-march=native", "-fopenmp", "-shared", "-fPIC", c, "-o", so, "-lm"], check=True)
    dll = ctypes.CDLL(so)
    P, L, I, D = ctypes.c_void_p, ctypes.c_long, ctypes.c_int, ctypes.c_double
    dll.fold.argtypes = [P, P, P, P, D, P, P, I]
    dll.apply.argtypes = [P, P, P, P, P, L, I, L]
    return dll


class ModelNew(nn.Module):
    _dll = None

    def __init__(self, channels: int):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(channels))
        self.bias = nn.Parameter(torch.zeros(channels))
        self.register_buffer("running_mean", torch.zeros(channels))
        self.register_buffer("running_var", torch.ones(channels))
        self._folded = (None, None)

    def folded(self) -> Tensor:
        sources = (self.weight, self.bias, self.running_mean, self.running_var)
        stamp = tuple((t.data_ptr(), t._version) for t in sources)
        if stamp != self._folded[0]:
            c = self.weight.numel()
            table = torch.empty(2, c, dtype=torch.float64)
            self._dll.fold(*(t.data_ptr() for t in sources), 1e-5, table[0].data_ptr(), table[1].data_ptr(), c)
            self._folded = (stamp, table)
        return self._folded[1]

    def forward(self, x: Tensor, skip: Tensor) -> Tensor:
        if ModelNew._dll is None:
            ModelNew._dll = _load()
        x, skip = x.contiguous(), skip.contiguous()
        y = torch.empty_like(x)
        n, c, h, w = x.shape
        table = self.folded()
        self._dll.apply(x.data_ptr(), skip.data_ptr(), y.data_ptr(), table[0].data_ptr(), table[1].data_ptr(), n * c, c, h * w)
        return y
