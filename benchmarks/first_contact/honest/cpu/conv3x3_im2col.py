"""Convolution the old way: im2col into a scratch matrix, then a small GEMM, bias and ReLU at the store."""
import ctypes
import os
import subprocess
import tempfile
from typing import Optional

import torch
import torch.nn as nn

SOURCE_LINES = [
    '#include <string.h>',
    '#include <stdint.h>',
    '',
    '/* columns: [C*9][H*W] of one image */',
    'static void im2col(const float *x, float *col, int C, int H, int W) {',
    '  for (int c = 0; c < C; ++c)',
    '    for (int ky = 0; ky < 3; ++ky)',
    '      for (int kx = 0; kx < 3; ++kx) {',
    '        float *dst = col + (int64_t)((c * 3 + ky) * 3 + kx) * H * W;',
    '        for (int y = 0; y < H; ++y) {',
    '          int iy = y + ky - 1;',
    '          for (int xx = 0; xx < W; ++xx) {',
    '            int ix = xx + kx - 1;',
    '            dst[y * W + xx] = (iy >= 0 && iy < H && ix >= 0 && ix < W) ? x[((int64_t)c * H + iy) * W + ix] : 0.f;',
    '          }',
    '        }',
    '      }',
    '}',
    '',
    '/* out[M][N] = relu(w[M][K] * col[K][N] + b[M]) in strips of 64 columns */',
    'static void gemm_bias_relu(const float *w, const float *col, const float *b, float *out, int M, int N, int K) {',
    '  enum { S = 64 };',
    '  for (int n0 = 0; n0 < N; n0 += S) {',
    '    int n = N - n0 < S ? N - n0 : S;',
    '    for (int m = 0; m < M; m += 2) {',
    '      float acc0[S] = {0}, acc1[S] = {0};',
    '      int two = m + 1 < M;',
    '      const float *w0 = w + (int64_t)m * K, *w1 = w + (int64_t)(m + two) * K;',
    '      for (int k = 0; k < K; ++k) {',
    '        const float *r = col + (int64_t)k * N + n0;',
    '        float a0 = w0[k], a1 = w1[k];',
    '        if (n == S) for (int j = 0; j < S; ++j) { acc0[j] += a0 * r[j]; acc1[j] += a1 * r[j]; }',
    '        else for (int j = 0; j < n; ++j) { acc0[j] += a0 * r[j]; acc1[j] += a1 * r[j]; }',
    '      }',
    '      for (int j = 0; j < n; ++j) {',
    '        float v0 = acc0[j] + b[m], v1 = acc1[j] + b[m + two];',
    '        out[(int64_t)m * N + n0 + j] = v0 < 0.f ? 0.f : v0;   /* NaN stays NaN */',
    '        if (two) out[(int64_t)(m + 1) * N + n0 + j] = v1 < 0.f ? 0.f : v1;',
    '      }',
    '    }',
    '  }',
    '}',
    '',
    'void conv(const float *x, const float *w, const float *b, float *y, float *scratch, int B, int C, int O, int H, int W) {',
    '  #pragma omp parallel for',
    '  for (int i = 0; i < B; ++i) {',
    '    float *col = scratch + (int64_t)i * C * 9 * H * W;',
    '    im2col(x + (int64_t)i * C * H * W, col, C, H, W);',
    '    gemm_bias_relu(w, col, b, y + (int64_t)i * O * H * W, O, H * W, C * 9);',
    '  }',
    '}',
]


def _build() -> ctypes.CDLL:
    d = tempfile.mkdtemp()
    p = os.path.join(d, "im2col.c")
    with open(p, "w") as f:
        f.write("\n".join(SOURCE_LINES) + "\n")
    subprocess.check_call(["gcc", "-std=gnu11", "-O3", "-march=native", "-fopenmp", "-shared", "-fPIC", "-o", p[:-1] + "so", p])
    return ctypes.CDLL(p[:-1] + "so")


_lib: Optional[ctypes.CDLL] = None


class ModelNew(nn.Module):
    def __init__(self, channels_in, channels_out):
        super().__init__()
        self.conv = nn.Conv2d(channels_in, channels_out, 3, padding=1)
        self._scratch = torch.empty(0)

    def forward(self, x):
        global _lib
        if _lib is None:
            _lib = _build()
        x = x.contiguous()
        b, c, h, w = x.shape
        need = b * c * 9 * h * w
        if self._scratch.numel() < need:  # the columns, overwritten by every call
            self._scratch = torch.empty(need)
        o = self.conv.out_channels
        y = torch.empty(b, o, h, w)
        _lib.conv(*(ctypes.c_void_p(t.data_ptr()) for t in (x, self.conv.weight, self.conv.bias, y, self._scratch)), b, c, o, h, w)
        return y
