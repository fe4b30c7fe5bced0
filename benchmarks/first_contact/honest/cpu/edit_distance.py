# Myers / Hyyro bit-parallel Levenshtein: one 64-bit column per text symbol.
import ctypes
import os
import subprocess
import tempfile

import torch
import torch.nn as nn

C = r"""
#include <stdint.h>
#include <stdlib.h>
static int64_t myers(const int64_t* p, int m, const int64_t* t, int n) {
    uint64_t pv = ~0ull, mv = 0, top = 1ull << (m - 1);
    int64_t score = m;
    for (int k = 0; k < n; k++) {
        const int64_t c = t[k];
        uint64_t eq = 0;
        for (int i = 0; i < m; i++) eq |= (uint64_t)(p[i] == c) << i;
        uint64_t xv = eq | mv;
        uint64_t xh = (((eq & pv) + pv) ^ pv) | eq;
        uint64_t ph = mv | ~(xh | pv);
        uint64_t mh = pv & xh;
        score += (ph & top) != 0;
        score -= (mh & top) != 0;
        ph = (ph << 1) | 1;
        mh <<= 1;
        pv = mh | ~(xv | ph);
        mv = ph & xv;
    }
    return score;
}
static int64_t table(const int64_t* p, int m, const int64_t* t, int n) {
    int64_t* d = (int64_t*)malloc(sizeof(int64_t) * (m + 1));
    for (int i = 0; i <= m; i++) d[i] = i;
    for (int k = 0; k < n; k++) {
        int64_t diag = d[0];
        d[0] = k + 1;
        for (int i = 0; i < m; i++) {
            int64_t up = d[i + 1], best = diag + (p[i] != t[k]);
            if (up + 1 < best) best = up + 1;
            if (d[i] + 1 < best) best = d[i] + 1;
            d[i + 1] = best;
            diag = up;
        }
    }
    int64_t r = d[m];
    free(d);
    return r;
}
void edit(const int64_t* a, int n, const int64_t* b, int m, int64_t* out, int64_t rows) {
    #pragma omp parallel for schedule(static)
    for (int64_t r = 0; r < rows; r++) {
        const int64_t *x = a + r * n, *y = b + r * m;
        if (n >= 1 && n <= 64) out[r] = myers(x, n, y, m);
        else if (m >= 1 && m <= 64) out[r] = myers(y, m, x, n);
        else out[r] = table(x, n, y, m);
    }
}
"""


def _build():
    d = tempfile.mkdtemp(prefix="edit")
    src, lib = os.path.join(d, "e.c"), os.path.join(d, "e.so")
    with open(src, "w") as f:
        f.write(C)
    subprocess.check_call(["gcc", "-O3", "-march=native", "-fopenmp", "-shared", "-fPIC", src, "-o", lib])
    return ctypes.CDLL(lib)


_lib = _build()
_p = ctypes.c_void_p
_lib.edit.argtypes = [_p, ctypes.c_int, _p, ctypes.c_int, _p, ctypes.c_int64]
_lib.edit.restype = None


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()

    def forward(self, a, b):
        assert a.dtype == torch.int64 and b.dtype == torch.int64 and a.shape[0] == b.shape[0]
        a, b = a.contiguous(), b.contiguous()
        out = torch.empty(a.shape[0], dtype=torch.int64)
        _lib.edit(a.data_ptr(), a.shape[1], b.data_ptr(), b.shape[1], out.data_ptr(), a.shape[0])
        return out
