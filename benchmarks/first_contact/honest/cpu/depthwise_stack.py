"""Causal depthwise convolution; one row with its zeros before it is staged on a page-aligned piece of the thread's own
stack (or of the heap, when long). The number of taps is dispatched to a template."""
import ctypes
import subprocess
import sys
import tempfile

import torch
import torch.nn as nn

CODE = r"""
#include <cstdint>
#include <cstdlib>
#include <cstring>

template <int TAPS>
static void row(const float* __restrict s, const float* w, float b, float* __restrict y, int64_t length, int taps) {
    const int n = TAPS ? TAPS : taps;
    for (int64_t i = 0; i < length; ++i) {
        float a = b;
        for (int t = 0; t < n; ++t) a += w[t] * s[i + t];
        y[i] = a;
    }
}

extern "C" void depthwise(const float* x, const float* w, const float* b, float* y, int64_t batch, int64_t channels,
                          int64_t length, int taps, int threads) {
    constexpr int64_t LIMIT = 1 << 14;
#pragma omp parallel for num_threads(threads) collapse(2)
    for (int64_t n = 0; n < batch; ++n)
        for (int64_t c = 0; c < channels; ++c) {
            alignas(4096) float local[LIMIT];
            const int64_t total = length + taps - 1;
            float* s = total <= LIMIT ? local : (float*)malloc(total * sizeof(float));
            memset(s, 0, (taps - 1) * sizeof(float));
            memcpy(s + taps - 1, x + (n * channels + c) * length, length * sizeof(float));
            float* out = y + (n * channels + c) * length;
            switch (taps) {
                case 3: row<3>(s, w + c * taps, b[c], out, length, taps); break;
                case 7: row<7>(s, w + c * taps, b[c], out, length, taps); break;
                default: row<0>(s, w + c * taps, b[c], out, length, taps);
            }
            if (s != local) free(s);
        }
}
"""


class _Library:
    """Compiled at the first use of an attribute."""
    def __getattr__(self, name):
        place = tempfile.mkdtemp(prefix="dw")
        with open(place + "/dw.cpp", "w") as f:
            print(CODE, file=f)
        process = subprocess.run(["g++", "-O3", "-march=native", "-fopenmp", "-fPIC", "-shared", "-o",
                                  place + "/dw.so", place + "/dw.cpp"], capture_output=True, text=True)
        if process.returncode:
            sys.exit(process.stderr)
        function = getattr(ctypes.CDLL(place + "/dw.so"), name)
        function.argtypes = [ctypes.c_void_p] * 4 + [ctypes.c_int64] * 3 + [ctypes.c_int] * 2
        self.__dict__[name] = function
        return function


LIBRARY = _Library()


class ModelNew(nn.Module):
    def __init__(self, channels, taps):
        super().__init__()
        self.taps = taps
        self.conv = nn.Conv1d(channels, channels, taps, groups=channels)

    def forward(self, x):
        x, w, b = x.contiguous(), self.conv.weight.contiguous(), self.conv.bias.contiguous()
        y = torch.empty_like(x)
        LIBRARY.depthwise(x.data_ptr(), w.data_ptr(), b.data_ptr(), y.data_ptr(), *x.shape, self.taps,
                          torch.get_num_threads())
        return y
