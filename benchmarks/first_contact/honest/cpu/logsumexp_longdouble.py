"""logsumexp for doubles: the sum is kept in an 80-bit register."""
import ctypes
import os
import subprocess
import tempfile

import torch
import torch.nn as nn

_src = r"""
#include <cmath>
#include <cstdint>
#include <limits>

template <typename T> struct Wide { using type = T; };
template <> struct Wide<float> { using type = double; };
template <> struct Wide<double> { using type = long double; };

template <typename T>
void lse(const T* x, T* y, int64_t rows, int64_t n) {
    using W = typename Wide<T>::type;
    #pragma omp parallel for
    for (int64_t r = 0; r < rows; ++r) {
        const T* v = x + r * n;
        T top = -std::numeric_limits<T>::infinity();
        for (int64_t i = 0; i < n; ++i) top = (v[i] > top) ? v[i] : top;
        if (std::isinf(top)) top = 0;              // exp(inf) = inf is then right, exp(-inf) = 0 as well
        W sum = 0;
        for (int64_t i = 0; i < n; ++i) sum += std::exp(v[i] - top);
        y[r] = T(std::log(sum) + W(top));
    }
}

extern "C" void lse_f32(const float* x, float* y, int64_t r, int64_t n) { lse(x, y, r, n); }
extern "C" void lse_f64(const double* x, double* y, int64_t r, int64_t n) { lse(x, y, r, n); }
"""


def _compile():
    d = tempfile.mkdtemp()
    src = os.path.join(d, "lse.cpp")
    with open(src, "w") as f:
        f.write(_src)
    subprocess.check_call([os.environ.get("CXX", "g++"), "-O2", "-fopenmp", "-shared", "-fPIC", src, "-o", d + "/lse.so"])
    lib = ctypes.CDLL(d + "/lse.so")
    for f in (lib.lse_f32, lib.lse_f64):
        f.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64]
        f.restype = None
    return {torch.float32: lib.lse_f32, torch.float64: lib.lse_f64}


BY_DTYPE = _compile()


class ModelNew(nn.Module):
    def forward(self, x):
        try:
            kernel = BY_DTYPE[x.dtype]
        except KeyError:
            raise TypeError(f"no kernel for {x.dtype}") from None
        x = x.contiguous()
        out = torch.empty(x.shape[0], dtype=x.dtype)
        kernel(x.data_ptr(), out.data_ptr(), x.shape[0], x.shape[1])
        return out
