"""RMS norm with a SiLU gate; denormals are flushed inside the kernel only, the control word is put back."""
import ctypes
import subprocess
import tempfile

import torch
import torch.nn as nn

CPP = r"""
#include <cmath>
#include <xmmintrin.h>
struct Flush { unsigned old = _mm_getcsr(); Flush() { _mm_setcsr(old | 0x8040); } ~Flush() { _mm_setcsr(old); } };
extern "C" void gated(const float* x, const float* g, const float* w, float* y, long n, long c, float eps) {
  #pragma omp parallel
  {
    Flush flush;
    #pragma omp for
    for (long i = 0; i < n; ++i) {
      double s = 0;
      for (long j = 0; j < c; ++j) s += (double)x[i * c + j] * x[i * c + j];
      const float r = (float)(1.0 / std::sqrt(s / c + eps));
      for (long j = 0; j < c; ++j) { float v = g[i * c + j]; y[i * c + j] = x[i * c + j] * r * w[j] * (v / (1.0f + std::exp(-v))); }
    }
  }
}
"""
so = tempfile.NamedTemporaryFile(suffix=".so", delete=False).name
subprocess.run("g++ -O3 -march=native -fopenmp -shared -fPIC -x c++ - -o " + so, shell=True, input=CPP.encode(), check=True)
gated = ctypes.CDLL(so).gated
gated.argtypes = [ctypes.c_void_p] * 4 + [ctypes.c_long] * 2 + [ctypes.c_float]


class ModelNew(nn.Module):
    def __init__(self, features, eps=1e-5):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(features))
        self.eps = eps

    def forward(self, x, gate):
        x, gate = x.contiguous(), gate.contiguous()
        y = torch.empty_like(x)
        gated(x.data_ptr(), gate.data_ptr(), self.weight.data_ptr(), y.data_ptr(), x.numel() // x.shape[-1], x.shape[-1], self.eps)
        return y
