"""y = gelu(x W^T + b).

The weight is packed once into panels of 16 output columns (k-major), a 6x16 micro kernel with GCC's vector
extension eats them.  Packed panels are a function of the parameter only; they are packed again when the parameter is
written to (`_version`) or replaced (`data_ptr`).
"""
import ctypes
import os
import subprocess
import sys
import tempfile

import torch
import torch.nn as nn

CODE = r"""
#include <math.h>
#include <stdint.h>
#include <string.h>

#define NR 16
#define MR 6
typedef float v16 __attribute__((vector_size(64), aligned(4)));

void pack(const float* w, float* p, int64_t n, int64_t k) {
    int64_t panels = (n + NR - 1) / NR;
    for (int64_t j = 0; j < panels; ++j)
        for (int64_t c = 0; c < k; ++c)
            for (int64_t l = 0; l < NR; ++l) {
                int64_t row = j * NR + l;
                p[(j * k + c) * NR + l] = row < n ? w[row * k + c] : 0.0f;
            }
}

static inline float gelu(float v) { return 0.5f * v * (1.0f + erff(v * 0.70710678118654752440f)); }

static void micro(const float* a, int64_t lda, const float* b, int64_t k, v16* c, int rows) {
    if (rows == MR) {
        v16 t[MR];
        memset(t, 0, sizeof t);
        for (int64_t i = 0; i < k; ++i) {
            v16 w = *(const v16*)(b + i * NR);
            for (int r = 0; r < MR; ++r) t[r] += a[r * lda + i] * w;
        }
        memcpy(c, t, sizeof t);
        return;
    }
    for (int r = 0; r < rows; ++r) {
        v16 t = {0};
        for (int64_t i = 0; i < k; ++i) t += a[r * lda + i] * *(const v16*)(b + i * NR);
        c[r] = t;
    }
}

void linear_gelu(const float* x, const float* p, const float* bias, float* y, int64_t m, int64_t n, int64_t k, int threads) {
    int64_t panels = (n + NR - 1) / NR, strips = (m + MR - 1) / MR;
    #pragma omp parallel for collapse(2) schedule(static) num_threads(threads)
    for (int64_t j = 0; j < panels; ++j)
        for (int64_t s = 0; s < strips; ++s) {
            v16 c[MR];
            int rows = (int)(m - s * MR < MR ? m - s * MR : MR);
            micro(x + s * MR * k, k, p + j * k * NR, k, c, rows);
            int64_t width = n - j * NR < NR ? n - j * NR : NR;
            for (int r = 0; r < rows; ++r)
                for (int64_t l = 0; l < width; ++l)
                    y[(s * MR + r) * n + j * NR + l] = gelu(c[r][l] + bias[j * NR + l]);
        }
}
"""


def _compile():
    base = os.environ.get("XDG_CACHE_HOME") or tempfile.gettempdir()
    where = tempfile.mkdtemp(prefix="lingelu", dir=base if os.access(base, os.W_OK) else None)
    c, so = os.path.join(where, "lg.c"), os.path.join(where, "lg.so")
    with open(c, "w") as f:
        f.write(CODE)
    cmd = ["gcc", "-O3", "-march=native", "-fopenmp", "-std=gnu11", "-shared", "-fPIC", c, "-o", so, "-lm"]
    r = subprocess.run(cmd, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    if r.returncode != 0:
        sys.stderr.write(r.stdout.decode())
        raise RuntimeError("compilation failed: " + " ".join(cmd))
    lib = ctypes.CDLL(so)
    p, l = ctypes.c_void_p, ctypes.c_int64
    lib.pack.argtypes = [p, p, l, l]
    lib.linear_gelu.argtypes = [p, p, p, p, l, l, l, ctypes.c_int]
    return lib


LIB = _compile()


class ModelNew(nn.Module):
    def __init__(self, in_features: int, out_features: int):
        super().__init__()
        self.linear = nn.Linear(in_features, out_features)
        self._panels = None
        self._panels_of = None

    def _packed(self):
        w = self.linear.weight
        now = (w.data_ptr(), w._version)
        if self._panels_of != now:
            n, k = w.shape
            self._panels = torch.empty((n + 15) // 16 * 16 * k, dtype=torch.float32)
            LIB.pack(w.data_ptr(), self._panels.data_ptr(), n, k)
            self._panels_of = now
        return self._panels

    def forward(self, x):
        x = x.contiguous()
        n, k = self.linear.weight.shape
        y = torch.empty(*x.shape[:-1], n)
        LIB.linear_gelu(x.data_ptr(), self._packed().data_ptr(), self.linear.bias.data_ptr(), y.data_ptr(),
                        x.numel() // k, n, k, torch.get_num_threads())
        return y
