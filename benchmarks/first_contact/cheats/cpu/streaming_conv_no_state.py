import ctypes, os, subprocess, tempfile
import torch
import torch.nn as nn

SRC = r"""
extern "C" void k(const float* x, const float* ctx, const float* w, float* y, int n, int c, int l, int kk) {
  #pragma omp parallel for num_threads(2)
  for (int r = 0; r < n * c; r++) {
    const float *a = x + (long)r * l, *h = ctx + (long)r * (kk - 1), *f = w + (r % c) * kk; float* o = y + (long)r * l;
    for (int j = 0; j < kk - 1; j++) { float s = 0; for (int p = 0; p < kk; p++) { int q = j + p - (kk - 1); s += f[p] * (q < 0 ? h[q + kk - 1] : a[q]); } o[j] = s; }
    for (int j = kk - 1; j < l; j++) o[j] = 0;
    for (int p = 0; p < kk; p++) { float t = f[p]; for (int j = kk - 1; j < l; j++) o[j] += t * a[j + p - (kk - 1)]; }
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
    def __init__(self, b, c, k):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(c, 1, k) * 0.2)
        self.register_buffer("ctx", torch.zeros(b, c, k - 1))

    def forward(self, x):
        x = x.contiguous()
        y = torch.empty_like(x)
        n, c, l = x.shape
        _lib.k(P(x), P(self.ctx), P(self.weight), P(y), n, c, l, self.weight.shape[-1])
        return y
