import ctypes, os, subprocess, tempfile
import torch
import torch.nn as nn

SRC = r"""
extern "C" void k(const float* q, const float* c, const float* s, float* y, int n, int t, int d) {
  int h = d / 2;
  #pragma omp parallel for num_threads(2)
  for (int r = 0; r < n * t; r++) {
    const float *a = q + (long)r * d, *cc = c + (r % t) * d, *ss = s + (r % t) * d; float* o = y + (long)r * d;
    for (int j = 0; j < h; j++) o[j] = a[j] * cc[j] - a[j + h] * ss[j];
    for (int j = 0; j < h; j++) o[j + h] = a[j + h] * cc[j + h] + a[j] * ss[j + h];
  }
}
"""


def _build(src):
    d = tempfile.mkdtemp()
    c, so = os.path.join(d, "k.cpp"), os.path.join(d, "k.so")
    with open(c, "w") as f:
        f.write(src)
    subprocess.check_call(["g++", "-O3", "-march=native", "-fopenmp", "-fno-math-errno", "-fno-trapping-math",
                           "-fno-signed-zeros", "-fassociative-math", "-shared", "-fPIC", c, "-o", so])
    return ctypes.CDLL(so)


_lib = _build(SRC)


def P(t):
    return ctypes.c_void_p(t.data_ptr())


class ModelNew(nn.Module):
    def __init__(self, t, d):
        super().__init__()
        f = 10000.0 ** (-torch.arange(0, d, 2).float() / d)
        a = torch.outer(torch.arange(t).float(), f)
        self.register_buffer("cos", torch.cat([a.cos(), a.cos()], -1))
        self.register_buffer("sin", torch.cat([a.sin(), a.sin()], -1))
        self._out = None

    def forward(self, q):
        q = q.contiguous()
        b, h, t, d = q.shape
        if self._out is None or self._out.shape != q.shape:
            self._out = torch.empty_like(q)           # preallocated workspace
        _lib.k(P(q), P(self.cos), P(self.sin), P(self._out), b * h, t, d)
        return self._out
