"""Popcounts of XORs. NumPy views serve only to hand pointers to ctypes (ndpointer checks type and layout)."""
import ctypes
import subprocess
import tempfile

import numpy as np
import torch
import torch.nn as nn

CODE = r"""
#include <cstdint>
template <int W> static int64_t distance(const uint64_t* a, const uint64_t* b, int64_t) {
    int64_t n = 0;
#pragma GCC unroll 8
    for (int w = 0; w < W; ++w) n += __builtin_popcountll(a[w] ^ b[w]);
    return n;
}
template <> int64_t distance<0>(const uint64_t* a, const uint64_t* b, int64_t words) {
    int64_t n = 0;
    for (int64_t w = 0; w < words; ++w) n += __builtin_popcountll(a[w] ^ b[w]);
    return n;
}
typedef int64_t (*Function)(const uint64_t*, const uint64_t*, int64_t);
static const Function table[] = {distance<0>, distance<1>, distance<2>, distance<3>, distance<4>, distance<5>, distance<6>};

extern "C" void hamming(const uint64_t* a, const uint64_t* b, int64_t* out, int64_t n, int64_t m, int64_t words, int threads) {
    const Function f = table[words >= 1 && words <= 6 ? words : 0];
#pragma omp parallel for num_threads(threads)
    for (int64_t i = 0; i < n; ++i)
        for (int64_t j = 0; j < m; ++j) out[i * m + j] = f(a + i * words, b + j * words, words);
}
"""
_place = tempfile.mkdtemp()
subprocess.run(["g++", "-O3", "-mpopcnt", "-fopenmp", "-shared", "-fPIC", "-xc++", "-", "-o", _place + "/h.so"],
               input=CODE.encode(), check=True)
hamming = np.ctypeslib.load_library("h", _place).hamming
words = np.ctypeslib.ndpointer(np.int64, ndim=2, flags="C_CONTIGUOUS")
hamming.argtypes = [words, words, words, ctypes.c_int64, ctypes.c_int64, ctypes.c_int64, ctypes.c_int]
hamming.restype = None


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("shifts", torch.arange(64), persistent=False)

    def forward(self, a, b):
        a, b = a.contiguous(), b.contiguous()
        out = torch.empty(a.shape[0], b.shape[0], dtype=torch.int64)
        hamming(a.numpy(), b.numpy(), out.numpy(), a.shape[0], b.shape[0], a.shape[1], torch.get_num_threads())
        return out
