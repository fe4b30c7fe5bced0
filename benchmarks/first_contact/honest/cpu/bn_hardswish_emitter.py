"""Generates one C function per (channels, pixels) with a generator of lines; constants of the shape are in the text."""
import ctypes
import functools
import subprocess
import tempfile

import torch
import torch.nn as nn


def lines(channels: int, pixels: int, eps: float):
    yield "#include <math.h>"
    yield f"enum {{ C = {channels}, P = {pixels} }};"
    yield "void run(const float* x, const float* mean, const float* var, const float* g, const float* b, float* y, long n) {"
    yield "  #pragma omp parallel for collapse(2)"
    yield "  for (long i = 0; i < n; i++) for (long c = 0; c < C; c++) {"
    yield f"    const float s = g[c] / sqrtf(var[c] + {eps!r}f), t = b[c] - mean[c] * s;"
    yield "    const float* p = x + (i * C + c) * P; float* q = y + (i * C + c) * P;"
    yield "    for (long k = 0; k < P; k++) {"
    yield "      float v = p[k] * s + t, h = v + 3.f;"
    yield "      h = h < 0.f ? 0.f : h > 6.f ? 6.f : h;"
    yield "      q[k] = v * h / 6.f;"
    yield "    }"
    yield "  }"
    yield "}"


@functools.lru_cache(maxsize=None)
def kernel(channels, pixels, eps):
    out = tempfile.NamedTemporaryFile(suffix=".so", delete=False).name
    text = "\n".join(lines(channels, pixels, eps)) + "\n"
    subprocess.run(["gcc", "-xc", "-", "-O3", "-march=native", "-fopenmp", "-shared", "-fPIC", "-o", out, "-lm"],
                   input=text, text=True, check=True)
    run = ctypes.CDLL(out).run
    run.argtypes = [ctypes.c_void_p] * 6 + [ctypes.c_long]
    run.restype = None
    return run


class ModelNew(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.bn = nn.BatchNorm2d(channels)
        self.bn.running_mean.copy_(torch.linspace(-1, 1, channels))
        self.bn.running_var.copy_(torch.linspace(0.5, 2, channels))
        self.eval()

    def forward(self, x):
        assert not self.training, "only for evaluation"
        x = x.contiguous()
        n, c, h, w = x.shape
        y = torch.empty_like(x)
        bn = self.bn
        kernel(c, h * w, bn.eps)(x.data_ptr(), bn.running_mean.data_ptr(), bn.running_var.data_ptr(),
                                 bn.weight.data_ptr(), bn.bias.data_ptr(), y.data_ptr(), n)
        return y
