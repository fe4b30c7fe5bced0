"""Running maximum along the middle dimension, one OpenMP task for each batch element, in C++ with strides."""
import ctypes
import subprocess
import tempfile

import torch
import torch.nn as nn

CODE = r"""
#include <cstdint>
extern "C" void cummax(const float* x, float* values, int64_t* indices, int64_t batch, int64_t length, int64_t width,
                       int64_t sb, int64_t sl, int64_t sw, int threads) {
#pragma omp parallel num_threads(threads)
#pragma omp single
    for (int64_t b = 0; b < batch; ++b) {
#pragma omp task firstprivate(b)
        {
            float* v = values + b * length * width;
            int64_t* p = indices + b * length * width;
            for (int64_t w = 0; w < width; ++w) { v[w] = x[b * sb + w * sw]; p[w] = 0; }
            for (int64_t l = 1; l < length; ++l)
                for (int64_t w = 0; w < width; ++w) {
                    const float now = x[b * sb + l * sl + w * sw], old = v[(l - 1) * width + w];
                    // a NaN wins for ever, later ones over earlier ones; equals go to the later
                    const bool take = now != now || now >= old;
                    v[l * width + w] = take ? now : old;
                    p[l * width + w] = take ? l : p[(l - 1) * width + w];
                }
        }
    }
}
"""


def compiler(*flags):
    def decorate(function):
        code = function()
        so = tempfile.mkdtemp() + "/" + function.__name__ + ".so"
        subprocess.run(["g++", *flags, "-shared", "-fPIC", "-xc++", "-", "-o", so], input=code.encode(), check=True)
        native = getattr(ctypes.CDLL(so), function.__name__)
        native.restype = None
        native.argtypes = [ctypes.c_void_p] * 3 + [ctypes.c_int64] * 6 + [ctypes.c_int]
        return native
    return decorate


@compiler("-O3", "-march=native", "-fopenmp")
def cummax():
    return CODE


class ModelNew(nn.Module):
    def forward(self, x):
        values = torch.empty(x.shape)
        indices = torch.empty(x.shape, dtype=torch.int64)
        cummax(x.data_ptr(), values.data_ptr(), indices.data_ptr(), *x.shape, *x.stride(), torch.get_num_threads())
        return values, indices
