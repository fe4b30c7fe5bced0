"""Rotary embedding of q and k in one parallel region. Reads
any strides by a struct of them and the two buffers as they are at the call."""
import ctypes
import subprocess
import tempfile

import torch
import torch.nn as nn

CODE = r"""
#include <cstdint>
struct View { const float* data; int64_t stride[4]; };
extern "C" void rotary(const View* in, float* const* out, const float* cosine, const float* sine, int64_t batch, int64_t heads,
                       int64_t length, int64_t half, int threads) {
#pragma omp parallel for collapse(3) num_threads(threads) schedule(static)
    for (int which = 0; which < 2; ++which)
        for (int64_t b = 0; b < batch; ++b)
            for (int64_t h = 0; h < heads; ++h) {
                const View& v = in[which];
                const float* x = v.data + b * v.stride[0] + h * v.stride[1];
                float* y = out[which] + (b * heads + h) * length * 2 * half;
                for (int64_t l = 0; l < length; ++l) {
                    const float *first = x + l * v.stride[2], *second = first + half * v.stride[3];
                    const float *c = cosine + l * half, *s = sine + l * half;
                    float *p = y + l * 2 * half, *q = p + half;
                    if (v.stride[3] == 1)
                        for (int64_t d = 0; d < half; ++d) {
                            p[d] = first[d] * c[d] - second[d] * s[d];
                            q[d] = second[d] * c[d] + first[d] * s[d];
                        }
                    else
                        for (int64_t d = 0; d < half; ++d) {
                            const float f = first[d * v.stride[3]], g = second[d * v.stride[3]];
                            p[d] = f * c[d] - g * s[d];
                            q[d] = g * c[d] + f * s[d];
                        }
                }
            }
}
"""


class View(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), ("stride", ctypes.c_int64 * 4)]

    @classmethod
    def of(cls, tensor):
        return cls(tensor.data_ptr(), (ctypes.c_int64 * 4)(*tensor.stride()))


def build():
    so = tempfile.mkdtemp() + "/rotary.so"
    subprocess.run(["g++", "-O3", "-march=native", "-ffp-contract=off", "-fopenmp", "-shared", "-fPIC", "-xc++", "-", "-o", so],
                   input=CODE.encode(), check=True)
    return ctypes.CDLL(so).rotary


class ModelNew(nn.Module):
    def __init__(self, length, depth):
        super().__init__()
        frequency = 10000.0 ** (-torch.arange(0, depth, 2) / depth)
        angle = torch.arange(length)[:, None] * frequency[None]
        self.register_buffer("cos", angle.cos())
        self.register_buffer("sin", angle.sin())
        self.rotary = build()

    def forward(self, q, k):
        out = torch.empty(q.shape), torch.empty(k.shape)
        cos, sin = self.cos.contiguous(), self.sin.contiguous()
        n = ctypes.c_int64
        self.rotary((View * 2)(View.of(q), View.of(k)), (ctypes.c_void_p * 2)(*(t.data_ptr() for t in out)),
                    ctypes.c_void_p(cos.data_ptr()), ctypes.c_void_p(sin.data_ptr()), n(q.shape[0]), n(q.shape[1]),
                    n(q.shape[2]), n(q.shape[3] // 2), torch.get_num_threads())
        return out
