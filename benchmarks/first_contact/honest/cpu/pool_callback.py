"""Max pooling with indices. The native side asks Python for its output memory through callbacks.

(In our code base the C part is shared with a Lua host, so it may not know what a tensor is.)
"""
import contextlib
import ctypes
import hashlib
import os
import subprocess
import sys
import tempfile

import torch
import torch.nn as nn

ALLOC = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_char, ctypes.POINTER(ctypes.c_int64))
WARN = ctypes.CFUNCTYPE(None, ctypes.c_char_p)

C_TEXT = r"""
#include <stdint.h>
#include <math.h>
typedef void *(*alloc_fn)(char kind, const int64_t *shape);
typedef void (*warn_fn)(const char *);

static inline int beats(float v, float m) { return (v > m) | (v != v); }

static void plane(const float *x, float *y, int64_t *ix, int64_t H, int64_t W, int64_t OH, int64_t OW)
{
    for (int64_t i = 0; i < OH; ++i) {
        int64_t h0 = 2 * i - 1, h1 = h0 + 3 < H ? h0 + 3 : H; if (h0 < 0) h0 = 0;
        for (int64_t j = 0; j < OW; ++j) {
            int64_t w0 = 2 * j - 1, w1 = w0 + 3 < W ? w0 + 3 : W; if (w0 < 0) w0 = 0;
            float m = -INFINITY; int64_t at = h0 * W + w0;
            for (int64_t a = h0; a < h1; ++a)
                for (int64_t b = w0; b < w1; ++b) {
                    const float v = x[a * W + b];
                    const int t = beats(v, m);
                    m = t ? v : m; at = t ? a * W + b : at;
                }
            y[i * OW + j] = m; ix[i * OW + j] = at;
        }
    }
}

int pool(const float *x, const int64_t *s, alloc_fn alloc, warn_fn warn, int threads)
{
    if (s[2] < 1 || s[3] < 1) { warn("empty plane"); return 1; }
    const int64_t o[4] = {s[0], s[1], (s[2] - 1) / 2 + 1, (s[3] - 1) / 2 + 1};
    float *y = alloc('f', o);
    int64_t *ix = alloc('l', o);
    if (!y || !ix) return 2;
    #pragma omp parallel for num_threads(threads)
    for (int64_t p = 0; p < s[0] * s[1]; ++p)
        plane(x + p * s[2] * s[3], y + p * o[2] * o[3], ix + p * o[2] * o[3], s[2], s[3], o[2], o[3]);
    return 0;
}
"""


@contextlib.contextmanager
def working_folder():
    before = os.getcwd()
    with tempfile.TemporaryDirectory() as d:
        os.chdir(d)
        try:
            yield d
        finally:
            os.chdir(before)


def built():
    key = hashlib.md5(C_TEXT.encode()).hexdigest()
    store = os.environ.get("POOL_CALLBACK_CACHE", tempfile.gettempdir())
    lib = os.path.join(store, f"libpool-{key}.so")
    if not os.path.isfile(lib):
        with working_folder() as d:
            with open("p.c", "w") as f:
                f.write(C_TEXT)
            subprocess.run(["gcc", "-O3", "-mavx2", "-fno-trapping-math", "-fopenmp", "-shared", "-fPIC", "p.c", "-o", "p.so"],
                           check=True)
            with open("p.so", "rb") as f:
                image = f.read()
        scratch = f"{lib}.{os.getpid()}"
        with open(scratch, "wb") as f:
            f.write(image)
        os.rename(scratch, lib)
    return ctypes.CDLL(lib)


pool = built().pool
pool.argtypes = [ctypes.c_void_p, ctypes.POINTER(ctypes.c_int64), ALLOC, WARN, ctypes.c_int]


class ModelNew(nn.Module):
    def forward(self, x):
        x = x.contiguous()
        made = {}

        @ALLOC
        def alloc(kind, shape):
            dtype = torch.float32 if kind == b"f" else torch.int64
            made[kind] = torch.empty(shape[:4], dtype=dtype)
            return made[kind].data_ptr()

        @WARN
        def warn(text):
            sys.stderr.write(text.decode() + "\n")

        code = pool(x.data_ptr(), (ctypes.c_int64 * 4)(*x.shape), alloc, warn, torch.get_num_threads())
        if code:
            raise RuntimeError(f"pool: {code}")
        return made[b"f"], made[b"l"]
