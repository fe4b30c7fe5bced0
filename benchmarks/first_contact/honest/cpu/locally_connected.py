"""Unshared convolution.  Weights packed as [block of 16 positions][out][k][16] by native code, once per version."""
import ctypes, subprocess, tempfile
import torch
from torch import nn

CODE = r"""
#include <string.h>
typedef float V __attribute__((vector_size(64), aligned(4)));
static long min_(long a, long b) { return a < b ? a : b; }
void pack(const float* w, float* out, long O, long K, long L) {
  for (long l0 = 0; l0 < L; l0 += 16)
    for (long o = 0; o < O; o++)
      for (long k = 0; k < K; k++, out += 16) {
        memset(out, 0, 64);
        memcpy(out, w + (o*K + k)*L + l0, min_(16, L - l0)*4);
      }
}
/* cols: scratch of B*K*Lp floats, Lp = L rounded up to 16 */
void local(const float* x, const float* wp, const float* bias, float* cols, float* y, long B, long C, long S, long O) {
  const long R = S - 2, L = R*R, Lp = (L + 15)/16*16, K = 9*C;
  for (long b = 0; b < B; b++)
    for (long k = 0; k < K; k++) {
      float* d = cols + (b*K + k)*Lp; const float* s = x + (b*C + k/9)*S*S + (k%9)/3*S + k%3;
      for (long i = 0; i < R; i++) memcpy(d + i*R, s + i*S, R*4);
      memset(d + L, 0, (Lp - L)*4);
    }
  for (long q = 0; q < Lp/16; q++)
    for (long o = 0; o < O; o++) {
      const float* w = wp + (q*O + o)*K*16;
      for (long b0 = 0; b0 < B; b0 += 8) {
        const long nb = min_(8, B - b0);
        V acc[8];
        for (int b = 0; b < 8; b++) acc[b] = (V){0};
        const float* c = cols + b0*K*Lp + q*16;
        if (nb == 8)
          for (long k = 0; k < K; k++) {
            const V g = *(const V*)(w + k*16);
            #pragma GCC unroll 8
            for (int b = 0; b < 8; b++) acc[b] += g * *(const V*)(c + (b*K + k)*Lp);
          }
        else
          for (long b = 0; b < nb; b++)
            for (long k = 0; k < K; k++) acc[b] += *(const V*)(w + k*16) * *(const V*)(c + (b*K + k)*Lp);
        for (long b = 0; b < nb; b++)
          for (long i = 0; i < min_(16, L - q*16); i++)
            y[((b0 + b)*O + o)*L + q*16 + i] = acc[b][i] + bias[o*L + q*16 + i];
      }
    }
}
"""
with tempfile.NamedTemporaryFile("w", suffix=".c") as f, tempfile.NamedTemporaryFile(suffix=".so") as g:
    f.write(CODE)
    f.flush()
    subprocess.run(["gcc", "-O3", "-march=native", "-shared", "-fPIC", f.name, "-o", g.name], check=True)
    lib = ctypes.CDLL(g.name)
PTR, LONG = ctypes.c_void_p, ctypes.c_long
lib.pack.argtypes, lib.local.argtypes = [PTR, PTR, LONG, LONG, LONG], [PTR] * 5 + [LONG] * 4
lib.pack.restype = lib.local.restype = None


class ModelNew(nn.Module):
    def __init__(self, cin, cout, size):
        super().__init__()
        out = size - 2
        self.weight = nn.Parameter(torch.randn(cout, cin * 9, out * out) / (cin * 9) ** 0.5)
        self.bias = nn.Parameter(torch.zeros(cout, out * out))
        self.size, self.packed, self.packed_for = size, None, None

    def _prepared(self):
        now = (self.weight.data_ptr(), self.weight._version)
        if self.packed_for != now:
            o, k, l = self.weight.shape
            w = self.weight.detach().contiguous()
            self.packed = torch.empty((l + 15) // 16, o, k, 16)
            lib.pack(w.data_ptr(), self.packed.data_ptr(), o, k, l)
            self.packed_for = now
        return self.packed

    def forward(self, x):
        o, k, l = self.weight.shape
        if x.dtype != torch.float32 or self.weight.dtype != torch.float32 or tuple(x.shape[1:]) != (k // 9, self.size, self.size):
            raise ValueError("unsupported input")
        x, bias, b = x.contiguous(), self.bias.detach().contiguous(), x.shape[0]
        y = torch.empty(b, o, self.size - 2, self.size - 2)
        cols = torch.empty(b * k * ((l + 15) // 16 * 16))
        lib.local(x.data_ptr(), self._prepared().data_ptr(), bias.data_ptr(), cols.data_ptr(), y.data_ptr(), b, k // 9, self.size, o)
        return y
