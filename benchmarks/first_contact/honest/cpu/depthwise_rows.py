import ctypes
import subprocess
import tempfile
from textwrap import dedent

import torch
import torch.nn as nn

# Macro version: interior columns run without any test, the left edge (and the right one for odd widths) is peeled.
C = dedent(r"""
    #include <stddef.h>
    #define TAP(row, i, k)   ((row) ? (row)[i] * (k) : 0.0f)
    #define CLAMP06(t)       ((t) < 0.0f ? 0.0f : (t) > 6.0f ? 6.0f : (t))
    #define HSWISH(v)        ((v) * CLAMP06((v) + 3.0f) / 6.0f)
    #define ROW3(row, i, k)  (TAP(row, (i) - 1, (k)[0]) + TAP(row, i, (k)[1]) + TAP(row, (i) + 1, (k)[2]))

    void depthwise(const float *x, const float *w, const float *b, float *y, int planes, int channels, int H, int W)
    {
        const int OH = (H + 1) / 2, OW = (W + 1) / 2;
        #pragma omp parallel for schedule(static)
        for (int p = 0; p < planes; p++) {
            const float *k = w + 9 * (p % channels), bias = b[p % channels];
            const float *plane = x + (size_t)p * H * W;
            for (int oy = 0; oy < OH; oy++) {
                const int iy = 2 * oy;
                const float *r0 = iy > 0 ? plane + (size_t)(iy - 1) * W : NULL;
                const float *r1 = plane + (size_t)iy * W;
                const float *r2 = iy + 1 < H ? plane + (size_t)(iy + 1) * W : NULL;
                float *out = y + ((size_t)p * OH + oy) * OW;
                for (int ox = 0; ox < OW; ox++) {
                    const int i = 2 * ox;
                    float v = bias;
                    if (i == 0 || i + 1 >= W) {
                        for (int d = -1; d <= 1; d++) {
                            if (i + d < 0 || i + d >= W) continue;
                            v += TAP(r0, i + d, k[d + 1]);
                            v += TAP(r1, i + d, k[d + 4]);
                            v += TAP(r2, i + d, k[d + 7]);
                        }
                    } else {
                        v += ROW3(r0, i, k);
                        v += ROW3(r1, i, k + 3);
                        v += ROW3(r2, i, k + 6);
                    }
                    out[ox] = HSWISH(v);
                }
            }
        }
    }
""")


def _once(f):
    """A decorator in place of functools.cache, for the one value that f makes."""
    box = []

    def g():
        if not box:
            box.append(f())
        return box[0]

    return g


@_once
def depthwise():
    so = tempfile.NamedTemporaryFile(suffix=".so", delete=False).name
    p = subprocess.Popen(["gcc", "-O3", "-march=native", "-fopenmp", "-shared", "-fPIC", "-xc", "-", "-o", so], stdin=subprocess.PIPE)
    p.communicate(C.encode())
    if p.returncode:
        raise OSError("gcc returned %d" % p.returncode)
    fn = ctypes.cdll.LoadLibrary(so).depthwise
    fn.argtypes = [ctypes.c_void_p] * 4 + [ctypes.c_int] * 4
    return fn


class ModelNew(nn.Module):
    def __init__(self, channels: int):
        super().__init__()
        self.dw = nn.Conv2d(channels, channels, 3, stride=2, padding=1, groups=channels, bias=True)

    def forward(self, x):
        n, c, h, w = x.shape
        x = x.contiguous()
        y = torch.empty(n, c, (h + 1) // 2, (w + 1) // 2, dtype=x.dtype)
        depthwise()(x.data_ptr(), self.dw.weight.data_ptr(), self.dw.bias.data_ptr(), y.data_ptr(), n * c, c, h, w)
        return y
