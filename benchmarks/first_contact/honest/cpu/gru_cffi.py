"""GRUCell via cffi (ABI mode). Gates are interleaved (r,z,n per hidden unit) so that one pass makes one unit."""
import os, subprocess, tempfile

import cffi
import torch

CDEF = "void gru(const float*, const float*, const float*, const float*, float*, long, long, long);"
CODE = r"""
#include <math.h>
#include <stdlib.h>
static inline float sg(float v) { return 1.f / (1.f + expf(-v)); }
/* w: for every unit j: [3][I] input rows, [3][H] hidden rows;  bias: [j][6] */
void gru(const float* x, const float* h, const float* w, const float* bias, float* out, long B, long I, long H) {
  const long unit = 3 * (I + H);
  #pragma omp parallel for schedule(static)
  for (long j = 0; j < H; j++) {
    const float *wi = w + j * unit, *wh = wi + 3 * I, *c = bias + 6 * j;
    for (long b = 0; b < B; b++) {
      float a[3], g[3];
      for (int q = 0; q < 3; q++) {
        float s = 0.f, t = 0.f;
        #pragma omp simd reduction(+:s)
        for (long k = 0; k < I; k++) s += x[b * I + k] * wi[q * I + k];
        #pragma omp simd reduction(+:t)
        for (long k = 0; k < H; k++) t += h[b * H + k] * wh[q * H + k];
        a[q] = s + c[q]; g[q] = t + c[3 + q];
      }
      const float r = sg(a[0] + g[0]), z = sg(a[1] + g[1]), n = tanhf(a[2] + r * g[2]);
      out[b * H + j] = (h[b * H + j] - n) * z + n;
    }
  }
}
"""

ffi = cffi.FFI()
ffi.cdef(CDEF)
_dir = tempfile.mkdtemp(prefix="gru_")
with open(os.path.join(_dir, "gru.c"), "w") as fh:
    fh.write(CODE)
subprocess.check_call(["gcc", "-O3", "-march=native", "-fopenmp", "-fPIC", "-shared", "-o", _dir + "/libgru.so", _dir + "/gru.c", "-lm"])
lib = ffi.dlopen(_dir + "/libgru.so")


def ptr(t):
    return ffi.cast("float*", t.data_ptr())


class ModelNew(torch.nn.Module):
    def __init__(self, inputs, hidden):
        super().__init__()
        self.cell = torch.nn.GRUCell(inputs, hidden)
        self.I, self.H = inputs, hidden
        self._stamp = None

    def _packed(self):
        c = self.cell
        ps = (c.weight_ih, c.weight_hh, c.bias_ih, c.bias_hh)
        stamp = tuple((p.data_ptr(), p._version) for p in ps)
        if stamp != self._stamp:
            wi, wh, bi, bh = (p.detach() for p in ps)
            H = self.H
            rows = torch.cat([wi.view(3, H, -1).transpose(0, 1).reshape(H, -1), wh.view(3, H, -1).transpose(0, 1).reshape(H, -1)], 1)
            self._w = rows.contiguous()
            self._b = torch.cat([bi.view(3, H).t(), bh.view(3, H).t()], 1).contiguous()
            self._stamp = stamp
        return self._w, self._b

    def forward(self, x, h):
        w, b = self._packed()
        x, h = x.contiguous(), h.contiguous()
        out = torch.empty_like(h)
        lib.gru(ptr(x), ptr(h), ptr(w), ptr(b), ptr(out), x.shape[0], self.I, self.H)
        return out
