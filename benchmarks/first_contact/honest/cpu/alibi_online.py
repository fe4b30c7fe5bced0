"""Causal ALiBi attention, online softmax over key blocks; scratch per shape is kept in a dict and reused by the next call."""
import ctypes
import os
import subprocess
import tempfile

import torch

CODE = r"""
#include <math.h>
#include <string.h>
#include <omp.h>
enum { KB = 16 };
void alibi(const float* q, const float* k, const float* v, const float* slopes, float* y, float* scratch,
           long B, long H, long N, long D) {
  const float scale = 1.0f / sqrtf((float)D);
  #pragma omp parallel for collapse(2) schedule(dynamic)
  for (long bh = 0; bh < B * H; bh++)
    for (long i = 0; i < N; i++) {
      float* acc = scratch + (long)omp_get_thread_num() * D;
      const float *qi = q + (bh * N + i) * D, slope = slopes[bh % H];
      float m = -INFINITY, l = 0;
      memset(acc, 0, D * sizeof(float));
      for (long j0 = 0; j0 <= i; j0 += KB) {
        const long j1 = j0 + KB <= i ? j0 + KB : i + 1;
        float s[KB], top = m;
        for (long j = j0; j < j1; j++) {
          float d = 0;
          #pragma omp simd reduction(+:d)
          for (long c = 0; c < D; c++) d += qi[c] * k[(bh * N + j) * D + c];
          s[j - j0] = d * scale - slope * (float)(i - j);
          top = s[j - j0] > top || s[j - j0] != s[j - j0] ? s[j - j0] : top;
        }
        const float ref = top == -INFINITY ? 0 : top, f = m == -INFINITY ? 0 : expf(m - ref);
        l *= f;
        for (long c = 0; c < D; c++) acc[c] *= f;
        for (long j = j0; j < j1; j++) {
          const float p = expf(s[j - j0] - ref);
          l += p;
          for (long c = 0; c < D; c++) acc[c] += p * v[(bh * N + j) * D + c];
        }
        m = top;
      }
      for (long c = 0; c < D; c++) y[(bh * N + i) * D + c] = acc[c] / l;
    }
}
"""


class Scratch(dict):
    def __missing__(self, width):
        self[width] = torch.empty((os.cpu_count() or 1) + 64, width)
        return self[width]


class ModelNew(torch.nn.Module):
    def __init__(self, heads):
        super().__init__()
        self.register_buffer("slopes", 2.0 ** (-8.0 * torch.arange(1, heads + 1) / heads))
        self.scratch = Scratch()
        self.lib = None

    def forward(self, q, k, v):
        if self.lib is None:
            so = os.path.join(tempfile.mkdtemp(), "alibi.so")
            subprocess.run(["gcc", "-O3", "-march=native", "-fopenmp", "-shared", "-fPIC", "-xc", "-", "-o", so, "-lm"], input=CODE, text=True, check=True)
            self.lib = ctypes.CDLL(so)
        q, k, v = q.contiguous(), k.contiguous(), v.contiguous()
        y = torch.empty_like(q)
        args = [q, k, v, self.slopes, y, self.scratch[q.shape[-1]]]
        self.lib.alibi(*[ctypes.c_void_p(t.data_ptr()) for t in args], *[ctypes.c_long(s) for s in q.shape])
        return y
