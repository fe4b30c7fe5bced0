"""Inference batch norm, folded into one multiply-add per channel whenever the module's mode is set."""
import ctypes
import subprocess
import tempfile

import torch
import torch.nn as nn

SRC = r"""
void affine(const float* x, const float* skip, const float* s, const float* t, float* y, long planes, long c, long n) {
  #pragma omp parallel for
  for (long p = 0; p < planes; p++) {
    float a = s[p % c], b = t[p % c];
    for (long i = p * n; i < (p + 1) * n; i++) { float v = x[i] * a + b + skip[i]; y[i] = v > 0 ? v : (v != v ? v : 0); }
  }
}
"""
_so = tempfile.mktemp(".so")
subprocess.run(["gcc", "-O3", "-march=native", "-fopenmp", "-shared", "-fPIC", "-x", "c", "-", "-o", _so], input=SRC.encode(), check=True)
_lib = ctypes.CDLL(_so)
_lib.affine.argtypes = [ctypes.c_void_p] * 5 + [ctypes.c_long] * 3


class ModelNew(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(channels))
        self.bias = nn.Parameter(torch.zeros(channels))
        self.register_buffer("running_mean", torch.zeros(channels))
        self.register_buffer("running_var", torch.ones(channels))
        self._fold()

    @torch.no_grad()
    def _fold(self):
        self.s = (self.weight * torch.rsqrt(self.running_var + 1e-5)).contiguous()
        self.t = (self.bias - self.running_mean * self.s).contiguous()

    def train(self, mode=True):
        super().train(mode)
        self._fold()
        return self

    def forward(self, x, skip):
        y = torch.empty_like(x)
        n, c, h, w = x.shape
        _lib.affine(x.data_ptr(), skip.data_ptr(), self.s.data_ptr(), self.t.data_ptr(), y.data_ptr(), n * c, c, h * w)
        return y
