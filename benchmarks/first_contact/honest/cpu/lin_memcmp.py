"""Linear + SiLU with packed weights.

Packing costs more than comparing, so the native side keeps the packed panels AND a plain copy
of the weights it packed; every call begins with a memcmp against the live parameter and packs
again if one bit differs. No version counters, no hooks: whatever changed the weights is seen.
"""
import ctypes
import os
import subprocess
import tempfile
import weakref

import torch
import torch.nn as nn

SRC = r"""
#include <cstdlib>
#include <cstring>
#include <cmath>
#include <cstdint>
#include <omp.h>

typedef float v16 __attribute__((vector_size(64)));
typedef float u16 __attribute__((vector_size(64), aligned(4)));
typedef int32_t i16 __attribute__((vector_size(64)));

struct Panels { long in, out; float *copy, *pack; bool ready; long packs; };

extern "C" Panels *panels_new(long in, long out) {
    auto *p = (Panels *)calloc(1, sizeof(Panels));
    p->in = in; p->out = out;
    long padded = (out + 31) / 32 * 32;
    if (posix_memalign((void **)&p->copy, 64, sizeof(float) * in * out)) abort();
    if (posix_memalign((void **)&p->pack, 64, sizeof(float) * in * padded)) abort();
    return p;
}
extern "C" void panels_free(Panels *p) { free(p->copy); free(p->pack); free(p); }

static void refresh(Panels *p, const float *w) {
    if (p->ready && !memcmp(p->copy, w, sizeof(float) * p->in * p->out)) return;
    memcpy(p->copy, w, sizeof(float) * p->in * p->out);
    const long in = p->in, out = p->out;
    for (long o = 0; o < out; o += 32)
        for (long k = 0; k < in; ++k)
            for (long c = 0; c < 32; ++c)
                p->pack[o * in + k * 32 + c] = o + c < out ? w[(o + c) * in + k] : 0.f;
    p->ready = true; ++p->packs;
}

static inline v16 pick(i16 m, v16 a, v16 b) { return (v16)(((i16)a & m) | ((i16)b & ~m)); }
static inline v16 all(float f) { return f - (v16){}; }

static inline v16 silu(v16 x) {
    v16 e = -x;
    e = pick(e > all(88.8f), all(88.8f), e);
    e = pick(e < all(-104.f), all(-104.f), e);
    v16 m = e * 1.44269504f + 12582912.f, n = m - 12582912.f;
    v16 r = (e - n * 0.693359375f) + n * 2.12194440e-4f;
    v16 p = all(1.9875691500e-4f);
    p = p * r + 1.3981999507e-3f; p = p * r + 8.3334519073e-3f; p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f; p = p * r + 5.0000001201e-1f; p = p * r * r + r + 1.f;
    i16 k = (i16)m - 0x4B400000, h = k >> 1;
    p = p * (v16)((h + 127) << 23) * (v16)((k - h + 127) << 23);
    return x / (1.f + p);
}

template <int R>
static void tile(const float *x, long lda, const float *b, const float *bias, float *y, long ldc, long in, long cols) {
    v16 c[R][2] = {};
    for (long k = 0; k < in; ++k) {
        v16 b0 = *(const v16 *)(b + k * 32), b1 = *(const v16 *)(b + k * 32 + 16);
        #pragma GCC unroll 16
        for (int r = 0; r < R; ++r) { float s = x[r * lda + k]; c[r][0] += s * b0; c[r][1] += s * b1; }
    }
    for (int r = 0; r < R; ++r)
        for (int h = 0; h < 2; ++h) {
            alignas(64) float t[16] = {};
            for (int j = 0; j < 16 && h * 16 + j < cols; ++j) t[j] = bias[h * 16 + j];
            v16 v = silu(c[r][h] + *(v16 *)t);
            if (cols >= h * 16 + 16) *(u16 *)(y + r * ldc + h * 16) = v;
            else for (int j = 0; h * 16 + j < cols; ++j) y[r * ldc + h * 16 + j] = v[j];
        }
}

extern "C" long forward(Panels *p, const float *x, const float *w, const float *bias, float *y, long rows, int threads) {
    refresh(p, w);
    const long in = p->in, out = p->out, blocks = (out + 31) / 32;
    #pragma omp parallel for num_threads(threads) schedule(dynamic, 1)
    for (long ob = 0; ob < blocks; ++ob) {
        const long o = ob * 32, cols = out - o < 32 ? out - o : 32;
        long i = 0;
        for (; i + ROWS <= rows; i += ROWS) tile<ROWS>(x + i * in, in, p->pack + o * in, bias + o, y + i * out + o, out, in, cols);
        for (; i < rows; ++i) tile<1>(x + i * in, in, p->pack + o * in, bias + o, y + i * out + o, out, in, cols);
    }
    return p->packs;
}
"""


def build():
    wide = "avx512f" in open("/proc/cpuinfo").read()
    rows = 12 if wide else 4
    isa = ["-mavx512f", "-mprefer-vector-width=512"] if wide else []
    d = tempfile.mkdtemp()
    with open(f"{d}/lin.cpp", "w") as f:
        f.write(SRC)
    subprocess.run(["g++", "-O3", "-mavx2", "-mfma", *isa, f"-DROWS={rows}", "-Wno-psabi", "-fopenmp", "-fno-trapping-math",
                    "-shared", "-fPIC", "-o", f"{d}/lin.so", f"{d}/lin.cpp"], check=True)
    lib = ctypes.CDLL(f"{d}/lin.so")
    for f in ("lin.cpp", "lin.so"):
        os.unlink(f"{d}/{f}")
    os.rmdir(d)
    v, n = ctypes.c_void_p, ctypes.c_long
    lib.panels_new.restype, lib.panels_new.argtypes = v, [n, n]
    lib.panels_free.restype, lib.panels_free.argtypes = None, [v]
    lib.forward.restype, lib.forward.argtypes = n, [v, v, v, v, v, n, ctypes.c_int]
    return lib


LIB = build()


class ModelNew(nn.Module):
    def __init__(self, fin, fout):
        super().__init__()
        self.fc = nn.Linear(fin, fout)
        self.panels = LIB.panels_new(fin, fout)
        weakref.finalize(self, LIB.panels_free, self.panels)

    def forward(self, x):
        w, b = self.fc.weight.contiguous(), self.fc.bias.contiguous()
        x = x.contiguous()
        y = torch.empty(*x.shape[:-1], w.shape[0])
        LIB.forward(self.panels, x.data_ptr(), w.data_ptr(), b.data_ptr(), y.data_ptr(), x.numel() // x.shape[-1],
                    torch.get_num_threads())
        return y
