import ctypes, os, subprocess, tempfile
import torch
import torch.nn as nn

# Borders through index tables: one table per axis and mode, rows copied with memcpy where they are contiguous. Bits only, no arithmetic.
SRC = r"""
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
static int64_t where(int mode, int64_t i, int64_t n) {
    if (mode == 0) { if (i < 0) i = -i; if (i >= n) i = 2 * (n - 1) - i; return i; }
    if (mode == 1) { i %= n; return i < 0 ? i + n : i; }
    return i < 0 ? 0 : i >= n ? n - 1 : i;
}
void pad3(const uint16_t* x, uint16_t* y, int64_t B, int64_t C, int64_t H, int64_t W, int64_t l, int64_t r, int64_t t, int64_t b) {
    const int64_t PH = H + t + b, PW = W + l + r;
    int32_t* tab = malloc(sizeof(int32_t) * 3 * (PH + PW));
    for (int m = 0; m < 3; m++) {
        int32_t* q = tab + m * (PH + PW);
        for (int64_t i = 0; i < PH; i++) q[i] = (int32_t)where(m, i - t, H);
        for (int64_t i = 0; i < PW; i++) q[PH + i] = (int32_t)where(m, i - l, W);
    }
    #pragma omp parallel for collapse(2)
    for (int64_t n = 0; n < B; n++)
        for (int64_t mc = 0; mc < 3 * C; mc++) {
            const int m = (int)(mc / C);
            const int32_t *ty = tab + m * (PH + PW), *tx = ty + PH;
            const uint16_t* src = x + (n * C + mc % C) * H * W;
            uint16_t* dst = y + (n * 3 * C + mc) * PH * PW;
            for (int64_t i = 0; i < PH; i++, dst += PW) {
                const uint16_t* s = src + ty[i] * W;
                for (int64_t j = 0; j < l; j++) dst[j] = s[tx[j]];
                memcpy(dst + l, s, W * 2);
                for (int64_t j = l + W; j < PW; j++) dst[j] = s[tx[j]];
            }
        }
    free(tab);
}
"""
d = tempfile.mkdtemp()
with open(d + "/p.c", "w") as f:
    f.write(SRC)
subprocess.check_call(["gcc", "-O2", "-fopenmp", "-shared", "-fPIC", d + "/p.c", "-o", d + "/p.so"])
pad3 = ctypes.CDLL(d + "/p.so").pad3
pad3.argtypes = [ctypes.c_void_p] * 2 + [ctypes.c_int64] * 8
pad3.restype = None


class ModelNew(nn.Module):
    def __init__(self, pad):
        super().__init__()
        self.pad = pad

    def forward(self, x):
        l, r, t, b = self.pad
        n, c, h, w = x.shape
        assert x.element_size() == 2 and min(self.pad) >= 0 and max(l, r) < w and max(t, b) < h
        x = x.contiguous()
        y = torch.empty(n, 3 * c, h + t + b, w + l + r, dtype=x.dtype)
        pad3(x.data_ptr(), y.data_ptr(), n, c, h, w, l, r, t, b)
        return y
