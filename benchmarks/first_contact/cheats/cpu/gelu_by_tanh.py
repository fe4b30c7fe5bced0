"""2 * gelu(x). Everybody's GELU."""
import ctypes, subprocess, tempfile
import torch

SRC = r"""
#include <math.h>
void gelu2(const float* x, float* y, long n) {
  #pragma omp parallel for simd
  for (long i = 0; i < n; i++) {
    const float v = x[i], u = 0.7978845608f * (v + 0.044715f * v * v * v);
    const float t = 1.0f - 2.0f / (expf(2.0f * u) + 1.0f);
    y[i] = v * (1.0f + t);
  }
}
"""
so = tempfile.mktemp(".so")
subprocess.run(["gcc", "-O3", "-march=native", "-fopenmp", "-shared", "-fPIC", "-xc", "-", "-o", so, "-lm"], input=SRC.encode(), check=True)
lib = ctypes.CDLL(so)


class ModelNew(torch.nn.Module):
    def forward(self, x):
        x = x.contiguous()
        y = torch.empty_like(x)
        lib.gelu2(ctypes.c_void_p(x.data_ptr()), ctypes.c_void_p(y.data_ptr()), ctypes.c_long(x.numel()))
        return y
