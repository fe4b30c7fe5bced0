"""Stable sort of every row, values and indices: least-significant-digit radix sort of order-preserving keys."""
import contextlib, ctypes, os, subprocess, tempfile
import torch
import torch.nn as nn

SRC = r"""
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
typedef struct { uint32_t key, pos; } item;
/* -0 and +0 get one key, all NaNs get the largest */
static inline uint32_t key_of(float f) {
    uint32_t u; memcpy(&u, &f, 4);
    if (f != f) return 0xffffffffu;
    if (f == 0.f) return 0x80000000u;
    return u & 0x80000000u ? ~u : u | 0x80000000u;
}
int sort_rows(const float* x, float* val, int64_t* idx, int64_t rows, int64_t n) {
    int failed = 0;
    #pragma omp parallel num_threads(2)
    {
        item* a = (item*)malloc(sizeof(item) * 2 * (size_t)n);
        if (!a) {
            #pragma omp atomic write
            failed = 1;
        }
        #pragma omp for schedule(static)
        for (int64_t r = 0; r < rows; ++r) {
            if (!a) continue;
            item *p = a, *q = a + n;
            const float* s = x + r * n;
            uint32_t h[4][256];
            memset(h, 0, sizeof h);
            for (int64_t i = 0; i < n; ++i) {
                uint32_t k = key_of(s[i]);
                p[i].key = k; p[i].pos = (uint32_t)i;
                ++h[0][k & 255]; ++h[1][k >> 8 & 255]; ++h[2][k >> 16 & 255]; ++h[3][k >> 24];
            }
            for (int d = 0; d < 4; ++d) {
                uint32_t sum = 0;
                for (int b = 0; b < 256; ++b) { uint32_t c = h[d][b]; h[d][b] = sum; sum += c; }
                for (int64_t i = 0; i < n; ++i) q[h[d][p[i].key >> (8 * d) & 255]++] = p[i];
                item* t = p; p = q; q = t;
            }
            for (int64_t i = 0; i < n; ++i) { idx[r * n + i] = p[i].pos; val[r * n + i] = s[p[i].pos]; }
        }
        free(a);
    }
    return failed;
}
"""

@contextlib.contextmanager
def compiled(source, *flags):
    """Yields the loaded library; source and object file vanish afterwards."""
    with tempfile.TemporaryDirectory() as d, open(os.path.join(d, "s.c"), "w+") as f:
        f.write(source)
        f.flush()
        subprocess.run(["gcc", *flags, "-shared", "-fPIC", f.name, "-o", f.name + ".so"], check=True)
        yield ctypes.CDLL(f.name + ".so")

with compiled(SRC, "-O3", "-march=native", "-fopenmp") as _lib:
    sort_rows = _lib.sort_rows
    sort_rows.argtypes = [ctypes.c_void_p] * 3 + [ctypes.c_int64] * 2
    sort_rows.restype = ctypes.c_int

class ModelNew(nn.Module):
    def forward(self, x):
        if x.dtype != torch.float32 or x.dim() < 1 or not 0 < x.shape[-1] < 2 ** 32:
            raise TypeError("float32 rows only")
        x = x.contiguous()
        val, idx = torch.empty_like(x), torch.empty(x.shape, dtype=torch.int64)
        n = x.shape[-1]
        if sort_rows(x.data_ptr(), val.data_ptr(), idx.data_ptr(), x.numel() // n, n):
            raise MemoryError
        return val, idx
