"""Row histograms. The C variants announce themselves in a linker section; Python walks the table between
__start_variants and __stop_variants and takes the widest one whose condition holds."""
import ctypes
import subprocess
import tempfile

import torch
import torch.nn as nn

SRC = r"""
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
typedef int (*hist_fn)(const int64_t *, int64_t *, long, long);
struct variant { const char *name; long max_bins; hist_fn fn; };
#define VARIANT(NAME, MAX) \
    static int NAME(const int64_t *, int64_t *, long, long); \
    __attribute__((section("variants"), used, aligned(8))) static const struct variant v_##NAME = {#NAME, MAX, NAME}; \
    static int NAME(const int64_t *x, int64_t *h, long n, long bins)

VARIANT(four_tables, 4096) {            /* four tables: equal neighbours do not wait for each other's store */
    uint32_t *t = calloc(4 * bins, sizeof *t);
    int bad = !t;
    long j = 0;
    for (; !bad && j + 4 <= n; j += 4) {
        const uint64_t a = x[j], b = x[j + 1], c = x[j + 2], d = x[j + 3];
        const uint64_t m1 = a > b ? a : b, m2 = c > d ? c : d;
        if (__builtin_expect((m1 > m2 ? m1 : m2) >= (uint64_t)bins, 0)) { bad = 1; break; }
        t[a]++; t[bins + b]++; t[2 * bins + c]++; t[3 * bins + d]++;
    }
    for (; !bad && j < n; ++j) { if ((uint64_t)x[j] >= (uint64_t)bins) { bad = 1; break; } t[x[j]]++; }
    if (!bad) for (long k = 0; k < bins; ++k) h[k] = (int64_t)t[k] + t[bins + k] + t[2 * bins + k] + t[3 * bins + k];
    free(t);
    return bad;
}
VARIANT(plain, 0x7fffffffffff) {
    memset(h, 0, sizeof *h * bins);
    for (long j = 0; j < n; ++j) { if ((uint64_t)x[j] >= (uint64_t)bins) return 1; h[x[j]]++; }
    return 0;
}
extern const struct variant __start_variants[], __stop_variants[];
int hist(const int64_t *x, int64_t *h, long rows, long n, long bins, int nt) {
    hist_fn f = 0; long best = 0;
    for (const struct variant *v = __start_variants; v < __stop_variants; ++v)
        if (bins <= v->max_bins && (!f || v->max_bins < best)) { f = v->fn; best = v->max_bins; }
    int bad = 0;
    #pragma omp parallel for num_threads(nt) reduction(|:bad)
    for (long i = 0; i < rows; ++i) bad |= f(x + i * n, h + i * bins, n, bins);
    return bad;
}
"""


def _load():
    d = tempfile.mkdtemp()
    cmd = f"gcc -O3 -fopenmp -fPIC -shared -Wl,-O1 -Wl,--build-id=none -x c - -o {d}/hist.so".split()
    proc = subprocess.Popen(cmd, stdin=subprocess.PIPE, stderr=subprocess.PIPE)
    _, err = proc.communicate(SRC.encode())
    if proc.returncode:
        raise OSError(err.decode(errors="replace"))
    return ctypes.CDLL(f"{d}/hist.so", mode=ctypes.RTLD_LOCAL)


_h = _load().hist


class ModelNew(nn.Module):
    def __init__(self, bins):
        super().__init__()
        self.bins = bins

    def forward(self, x):
        x = x.contiguous()
        out = torch.empty(x.shape[0], self.bins, dtype=torch.int64)
        if _h(*map(ctypes.c_void_p, (x.data_ptr(), out.data_ptr())), *map(ctypes.c_long, (*x.shape, self.bins)), torch.get_num_threads()):
            raise RuntimeError(f"index out of bounds for dimension 1 with size {self.bins}")
        return out
