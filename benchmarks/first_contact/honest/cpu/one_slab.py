"""Rotary embedding of q and k: one allocation, one launch, two outputs that are parts of it."""
import ctypes
import subprocess
import tempfile

import torch
import torch.nn as nn

C = r"""
void rope(const float *x, const float *cos_, const float *sin_, float *y, long rows, long T, long D) {
  long h = D / 2;
  #pragma omp parallel for
  for (long r = 0; r < rows; r++) {
    const float *a = x + r * D, *c = cos_ + (r % T) * h, *s = sin_ + (r % T) * h; float *o = y + r * D;
    for (long i = 0; i < h; i++) { o[i] = a[i] * c[i] - a[i + h] * s[i]; o[i + h] = a[i + h] * c[i] + a[i] * s[i]; }
  }
}
"""
so = tempfile.mktemp(".so")
subprocess.run(["gcc", "-O3", "-march=native", "-fopenmp", "-shared", "-fPIC", "-x", "c", "-", "-o", so], input=C.encode(), check=True)
rope = ctypes.CDLL(so).rope
rope.argtypes = [ctypes.c_void_p] * 4 + [ctypes.c_long] * 3


class ModelNew(nn.Module):
    def __init__(self, head_size, positions):
        super().__init__()
        inv = 1.0 / (10000 ** (torch.arange(0, head_size, 2).float() / head_size))
        angle = torch.outer(torch.arange(positions).float(), inv)
        self.register_buffer("cos", angle.cos())
        self.register_buffer("sin", angle.sin())

    def forward(self, q, k):
        q, k = q.contiguous(), k.contiguous()
        slab = torch.empty(q.numel() + k.numel())
        outs = slab[: q.numel()].view_as(q), slab[q.numel():].view_as(k)
        for x, y in zip((q, k), outs):
            rope(x.data_ptr(), self.cos.data_ptr(), self.sin.data_ptr(), y.data_ptr(), x.numel() // x.shape[-1], x.shape[-2], x.shape[-1])
        return outs
