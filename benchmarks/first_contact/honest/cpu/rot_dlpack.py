"""Rotary embedding: the C side receives DLPack capsules and reads shape and pointer itself (no torch headers)."""
import ctypes
import subprocess
import tempfile

import torch
import torch.nn as nn
from torch.utils import dlpack

SRC = r"""
#include <cstdint>
struct Device { int32_t type, id; };
struct DType { uint8_t code, bits; uint16_t lanes; };
struct Tensor { void *data; Device device; int32_t ndim; DType dtype; int64_t *shape, *strides; uint64_t offset; };
static float *at(Tensor *t) { return (float *)((char *)t->data + t->offset); }
extern "C" int rotary(Tensor *x, Tensor *c, Tensor *s, Tensor *y, int nt) {
    if (x->dtype.code != 2 || x->dtype.bits != 32 || x->device.type != 1) return 1;
    const int64_t T = x->shape[x->ndim - 2], D = x->shape[x->ndim - 1], h = D / 2;
    int64_t heads = 1;
    for (int i = 0; i < x->ndim - 2; ++i) heads *= x->shape[i];
    const float *px = at(x), *pc = at(c), *ps = at(s); float *py = at(y);
    #pragma omp parallel for collapse(2) num_threads(nt)
    for (int64_t b = 0; b < heads; ++b)
        for (int64_t t = 0; t < T; ++t) {
            const float *p = px + (b * T + t) * D, *cc = pc + t * D, *ss = ps + t * D; float *q = py + (b * T + t) * D;
            #pragma omp simd
            for (int64_t j = 0; j < h; ++j) q[j] = p[j] * cc[j] + -p[j + h] * ss[j];
            #pragma omp simd
            for (int64_t j = 0; j < h; ++j) q[j + h] = p[j + h] * cc[j + h] + p[j] * ss[j + h];
        }
    return 0;
}
"""
with tempfile.TemporaryDirectory() as _d:
    subprocess.run(["g++", "-O3", "-mavx2", "-fopenmp", "-shared", "-fPIC", "-xc++", "-", "-o", _d + "/r.so"], input=SRC.encode(), check=True)
    _lib = ctypes.CDLL(_d + "/r.so")

_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_pointer.restype, _pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]


def launch(*tensors):
    capsules = [dlpack.to_dlpack(t.detach()) for t in tensors]  # they keep the memory alive until the call is over
    if _lib.rotary(*(ctypes.c_void_p(_pointer(c, b"dltensor")) for c in capsules), torch.get_num_threads()):
        raise TypeError("float32 on the CPU, please")


class ModelNew(nn.Module):
    def __init__(self, steps, width):
        super().__init__()
        freq = 10000.0 ** (-torch.arange(0, width, 2).float() / width)
        angle = torch.outer(torch.arange(steps).float(), freq)
        angle = torch.cat([angle, angle], -1)
        self.register_buffer("cos", angle.cos())
        self.register_buffer("sin", angle.sin())

    def forward(self, q, k):
        out = []
        for x in (q.contiguous(), k.contiguous()):
            y = torch.empty_like(x)
            launch(x, self.cos, self.sin, y)
            out.append(y)
        return tuple(out)
