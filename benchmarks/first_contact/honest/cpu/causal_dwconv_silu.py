"""Causal depthwise convolution in the (batch, time, channel) layout; C is generated for the kernel width."""
import ctypes, os, subprocess, tempfile
from string import Template
import torch
from torch import nn

TEMPLATE = Template(r"""
#include <string.h>
#define K $K
static inline float ex(float x) {
  x = x > 89.f ? 89.f : x; x = x < -105.f ? -105.f : x;
  float n = (x*1.44269504f + 12582912.f) - 12582912.f, r = x - n*0.693359375f; r += n*2.12194440e-4f;
  float p = 1.9875691500e-4f;
  p = p*r + 1.3981999507e-3f; p = p*r + 8.3334519073e-3f; p = p*r + 4.1665795894e-2f;
  p = p*r + 1.6666665459e-1f; p = p*r + 5.0000001201e-1f; p = p*r*r + r + 1.f;
  int k = (int)n, h = k >> 1, l = k - h; int u = (h + 127) << 23, v = (l + 127) << 23;
  float a, b; memcpy(&a, &u, 4); memcpy(&b, &v, 4);
  return p*a*b;
}
void conv(const float* restrict x, const float* restrict w, const float* restrict bias, float* restrict y, long B, long T, long D) {
  #pragma omp parallel for collapse(2) schedule(static)
  for (long b = 0; b < B; b++)
    for (long t = 0; t < T; t++) {
      const float* r = x + (b*T + t)*D; float* o = y + (b*T + t)*D;
      if (t >= K - 1) {
        #pragma omp simd
        for (long d = 0; d < D; d++) {
          float s = bias[d];
          $TAPS
          o[d] = s / (1.f + ex(-s));
        }
      } else
        for (long d = 0; d < D; d++) {
          float s = bias[d];
          for (long j = 0; j < K; j++) s += w[j*D + d] * (t - (K - 1) + j < 0 ? 0.f : r[(j - (K - 1))*D + d]);
          o[d] = s / (1.f + ex(-s));
        }
    }
}
""")
_built = {}


def kernel_for(k):
    if k not in _built:
        taps = "\n          ".join(f"s += w[{j}*D + d] * r[({j - k + 1})*D + d];" for j in range(k))
        d = tempfile.mkdtemp()
        with open(os.path.join(d, "c.c"), "w") as f:
            f.write(TEMPLATE.substitute(K=k, TAPS=taps))
        subprocess.check_call(["gcc", "-O3", "-march=native", "-fopenmp", "-fno-trapping-math", "-shared", "-fPIC", "-o", d + "/c.so", d + "/c.c"])
        fn = ctypes.CDLL(d + "/c.so").conv
        fn.argtypes, fn.restype = [ctypes.c_void_p] * 4 + [ctypes.c_long] * 3, None
        _built[k] = fn
    return _built[k]


class ModelNew(nn.Module):
    def __init__(self, dim, k):
        super().__init__()
        self.k = k
        self.conv = nn.Conv1d(dim, dim, k, groups=dim)
        self.fn = None
        self.taps = {}

    def __getstate__(self):                      # deepcopy and pickle without the function pointer
        return {**self.__dict__, "fn": None, "taps": {}}

    def forward(self, x):
        self.fn = self.fn or kernel_for(self.k)
        w, b = self.conv.weight, self.conv.bias
        if x.dtype != torch.float32 or x.dim() != 3 or x.shape[2] != w.shape[0]:
            raise TypeError("float32 (batch, time, dim) only")
        key = (w.data_ptr(), w._version)
        if self.taps.get("key") != key:
            self.taps = {"key": key, "w": w.detach()[:, 0, :].t().clone(memory_format=torch.contiguous_format)}
        x, b = x.contiguous(), b.detach().contiguous()
        y = torch.empty_like(x)
        self.fn(x.data_ptr(), self.taps["w"].data_ptr(), b.data_ptr(), y.data_ptr(), *x.shape)
        return y
