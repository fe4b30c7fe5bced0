import ctypes, os, subprocess, tempfile
import torch
from torch import nn

SOURCE = r"""
#include <cstddef>
#include <vector>
#include <algorithm>
// column sums of three rows into `col` (one element of margin on both sides), then three neighbours
extern "C" void mix(const float* x, const float* scale, float* y, long N, long C, long H, long W) {
  static thread_local std::vector<float> col;       // kept per thread, written before it is read
  #pragma omp parallel for schedule(static)
  for (long p = 0; p < N*C; p++) {
    col.resize(W + 2);
    float* c = col.data();
    const float g = scale[p % C]; const float* a = x + p*H*W; float* o = y + p*H*W;
    for (long i = 0; i < H; i++) {
      const float* m = a + i*W; const int rows = 1 + (i > 0) + (i + 1 < H);
      c[0] = c[W + 1] = 0.f;
      for (long j = 0; j < W; j++) c[j + 1] = m[j];
      if (i > 0) for (long j = 0; j < W; j++) c[j + 1] += m[j - W];
      if (i + 1 < H) for (long j = 0; j < W; j++) c[j + 1] += m[j + W];
      const float full = (float)(rows*std::min(3L, W)), edge = (float)(rows*std::min(2L, W));
      for (long j = 0; j < W; j++) {
        const float n = (j == 0 || j == W - 1) ? edge : full;
        const float avg = (c[j] + c[j + 1] + c[j + 2]) / n;
        o[i*W + j] = m[j] + g*(avg - m[j]);
      }
    }
  }
}
"""


class _Mix:
    fn = None

    @classmethod
    def get(cls):
        if cls.fn is None:
            d = tempfile.mkdtemp()
            path = os.path.join(d, "mix.cpp")
            with open(path, "w") as f:
                f.write(SOURCE)
            subprocess.check_output(["g++", "-O3", "-march=native", "-fopenmp", "-shared", "-fPIC", path, "-o", path + ".so"])
            cls.fn = ctypes.CDLL(path + ".so").mix
            cls.fn.argtypes = [ctypes.c_void_p] * 3 + [ctypes.c_long] * 4
            cls.fn.restype = None
        return cls.fn


class ModelNew(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.scale = nn.Parameter(torch.full((channels,), 0.3))
        _Mix.get()

    def forward(self, x):
        if x.dtype != torch.float32 or x.dim() != 4 or x.shape[1] != self.scale.numel() or self.scale.dtype != x.dtype:
            raise TypeError("float32 (N, C, H, W)")
        x, s = x.contiguous(), self.scale.detach().contiguous()
        y = torch.empty_like(x)
        _Mix.get()(x.data_ptr(), s.data_ptr(), y.data_ptr(), *x.shape)
        return y
