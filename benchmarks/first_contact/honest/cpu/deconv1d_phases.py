"""ConvTranspose1d(k=4, s=2, p=1) is two ordinary convolutions with two taps, one for even and one for odd outputs."""
import ctypes, subprocess, tempfile
import torch, torch.nn as nn

SRC = r"""
#include <string.h>
#include <stdlib.h>
/* even t=2s:   taps k=1 at s, k=3 at s-1 ;  odd t=2s+1:  taps k=2 at s, k=0 at s+1 */
void deconv(const float* x, const float* w, const float* bias, float* y, long n, long ci, long co, long len) {
  #pragma omp parallel for collapse(2)
  for (long b = 0; b < n; b++) for (long o = 0; o < co; o++) {
    float even[len], odd[len];
    for (long s = 0; s < len; s++) even[s] = odd[s] = bias[o];
    for (long c = 0; c < ci; c++) {
      const float* p = x + (b * ci + c) * len; const float* k = w + (c * co + o) * 4;
      for (long s = 0; s < len; s++) { even[s] += k[1] * p[s]; odd[s] += k[2] * p[s]; }
      for (long s = 1; s < len; s++) { even[s] += k[3] * p[s - 1]; odd[s - 1] += k[0] * p[s]; }
    }
    float* q = y + (b * co + o) * 2 * len;
    for (long s = 0; s < len; s++) { q[2 * s] = even[s] < 0 ? 0 : even[s]; q[2 * s + 1] = odd[s] < 0 ? 0 : odd[s]; }
  }
}
"""
with tempfile.NamedTemporaryFile(suffix=".c", mode="w") as _f:
    _f.write(SRC)
    _f.flush()
    subprocess.run(["gcc", "-O3", "-march=native", "-fopenmp", "-shared", "-fPIC", _f.name, "-o", _f.name + ".so"], check=True)
    deconv = ctypes.CDLL(_f.name + ".so").deconv


class ModelNew(nn.Module):
    def __init__(self, cin, cout):
        super().__init__()
        self.up = nn.ConvTranspose1d(cin, cout, 4, stride=2, padding=1)

    def forward(self, x):
        w, b = self.up.weight.data, self.up.bias.data
        x, w = x.contiguous(), w.contiguous()
        n, ci, length = x.shape
        y = torch.zeros(n, w.shape[1], 2 * length)
        deconv(*[ctypes.c_void_p(t.data_ptr()) for t in (x, w, b, y)], *[ctypes.c_long(v) for v in (n, ci, w.shape[1], length)])
        return y
