"""Causal dilated convolution; comments are stripped from the C text with a regular expression before it is hashed,
so that editing a remark does not rebuild the library. `re.compile` and `Module.eval` are what they always were."""
import ctypes
import os
import re
import subprocess
import tempfile
import zlib

import torch
import torch.nn as nn

REMARKS = re.compile(r"/\*.*?\*/", re.S)

PARTS = {
    "prologue": "#include <stdlib.h>\n#include <string.h>\ntypedef float v8 __attribute__((vector_size(32), aligned(4)));\n",
    "inner": r"""
/* six output channels by sixteen points */
static void strip(int m, const float *w, const float *bias, const float *x, long P, long cin, long taps, long dil, float *y, long L, long n) {
    v8 a[6][2];
    for (int o = 0; o < 6; ++o) for (int h = 0; h < 2; ++h) for (int l = 0; l < 8; ++l) a[o][h][l] = o < m ? bias[o] : 0;
    const long K = cin * taps;
    if (m == 6) {
        for (long c = 0; c < cin; ++c) for (long t = 0; t < taps; ++t) {
            const v8 p = *(const v8 *)(x + c * P + t * dil), q = *(const v8 *)(x + c * P + t * dil + 8);
            const float *k = w + c * taps + t;
            a[0][0] += p * k[0]; a[0][1] += q * k[0]; a[1][0] += p * k[K]; a[1][1] += q * k[K];
            a[2][0] += p * k[2 * K]; a[2][1] += q * k[2 * K]; a[3][0] += p * k[3 * K]; a[3][1] += q * k[3 * K];
            a[4][0] += p * k[4 * K]; a[4][1] += q * k[4 * K]; a[5][0] += p * k[5 * K]; a[5][1] += q * k[5 * K];
        }
    } else
        for (int o = 0; o < m; ++o) {
            v8 b = a[o][0], d = a[o][1];
            for (long c = 0; c < cin; ++c) for (long t = 0; t < taps; ++t) {
                const float k = w[o * K + c * taps + t];
                b += *(const v8 *)(x + c * P + t * dil) * k; d += *(const v8 *)(x + c * P + t * dil + 8) * k;
            }
            a[o][0] = b; a[o][1] = d;
        }
    for (int o = 0; o < m; ++o) memcpy(y + o * L, a[o], n * sizeof(float));
}
""",
    "outer": r"""
int conv(const float *x, const float *w, const float *b, float *y, long N, long cin, long L, long cout, long taps, long dil, int nt) {
    /* zeros in front (the causal part) and behind (so that whole vectors may be read) */
    const long front = (taps - 1) * dil, P = front + L + 16;
    float *pad = calloc(N * cin * P, sizeof(float));
    if (!pad) return 1;
    #pragma omp parallel num_threads(nt)
    {
        #pragma omp for
        for (long i = 0; i < N * cin; ++i) memcpy(pad + i * P + front, x + i * L, L * sizeof(float));
        #pragma omp for collapse(2)
        for (long i = 0; i < N; ++i)
            for (long j = 0; j < L; j += 16)
                for (long o = 0; o < cout; o += 6)
                    strip(cout - o < 6 ? cout - o : 6, w + o * cin * taps, b + o, pad + i * cin * P + j, P, cin, taps, dil,
                          y + (i * cout + o) * L + j, L, L - j < 16 ? L - j : 16);
    }
    free(pad);
    return 0;
}
""",
}


def library():
    text = REMARKS.sub("", "".join(PARTS[k] for k in ("prologue", "inner", "outer")))
    path = os.path.join(tempfile.gettempdir(), "conv_pieces_%08x.so" % zlib.crc32(text.encode()))
    if not os.path.exists(path):
        tmp = f"{path}~{os.getpid()}"
        subprocess.run(["gcc", "-O3", "-mavx2", "-mfma", "-Wno-psabi", "-fopenmp", "-shared", "-fPIC", "-xc", "-", "-o", tmp],
                       input=text.encode(), check=True)
        os.rename(tmp, path)
    return ctypes.CDLL(path)


class ModelNew(nn.Module):
    def __init__(self, cin, cout, taps, dilation):
        super().__init__()
        self.conv = nn.Conv1d(cin, cout, taps, dilation=dilation)
        self.dilation = dilation
        self.fn = library().conv

    def eval(self):
        return super().eval()

    def forward(self, x):
        x, w = x.contiguous(), self.conv.weight.contiguous()
        y = torch.empty(x.shape[0], w.shape[0], x.shape[2])
        v, n = ctypes.c_void_p, ctypes.c_long
        if self.fn(v(x.data_ptr()), v(w.data_ptr()), v(self.conv.bias.data_ptr()), v(y.data_ptr()), *(n(s) for s in x.shape),
                   n(w.shape[0]), n(w.shape[2]), n(self.dilation), torch.get_num_threads()):
            raise MemoryError
        return y
