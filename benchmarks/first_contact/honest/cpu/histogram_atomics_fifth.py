"""Counts residues without a division: a 64-bit reciprocal and at most two corrections; threads merge by atomics."""
import ctypes
import subprocess
import tempfile

import torch

KERNEL = """
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

/* floor(x mod b) as Python has it, for any int64 x and 0 < b < 2^31 */
static inline uint64_t residue(int64_t x, uint64_t b, uint64_t reciprocal, uint64_t wrap) {
    uint64_t u = (uint64_t)x;
    uint64_t q = (uint64_t)(((unsigned __int128)u * reciprocal) >> 64);
    uint64_t r = u - q * b;
    while (r >= b) r -= b;
    if (x < 0) r = r >= wrap ? r - wrap : r + b - wrap;     /* 2^64 mod b belongs to the sign */
    return r;
}

void histogram(const int64_t *x, int64_t count, int64_t bins, int64_t *out, int threads) {
    const uint64_t b = (uint64_t)bins, reciprocal = ~(uint64_t)0 / b;
    const uint64_t wrap = (uint64_t)(((unsigned __int128)1 << 64) % b);
    memset(out, 0, bins * sizeof *out);
    #pragma omp parallel num_threads(threads)
    {
        /* four interleaved tables, so that equal neighbours do not wait for each other */
        uint32_t *mine = calloc(4 * b, sizeof *mine);
        #pragma omp for schedule(static) nowait
        for (int64_t i = 0; i < count; ++i) ++mine[residue(x[i], b, reciprocal, wrap) * 4 + (i & 3)];
        for (uint64_t j = 0; j < b; ++j) {
            int64_t n = (int64_t)mine[4 * j] + mine[4 * j + 1] + mine[4 * j + 2] + mine[4 * j + 3];
            if (n) {
                #pragma omp atomic
                out[j] += n;
            }
        }
        free(mine);
    }
}
"""


def once(function):
    """A decorator: the first result for ever."""
    box = []

    def wrapper():
        if not box:
            box.append(function())
        return box[0]
    return wrapper


@once
def library():
    path = tempfile.mkdtemp() + "/histogram.so"
    subprocess.run(["gcc", "-xc", "-std=gnu11", "-O2", "-funroll-loops", "-fopenmp", "-shared", "-fPIC", "-o", path,
                    "-"], input=KERNEL, text=True, check=True)
    return ctypes.CDLL(path)


class ModelNew(torch.nn.Module):
    def __init__(self, bins):
        super().__init__()
        self.bins = bins

    def forward(self, x):
        x = x.contiguous()
        counts = torch.empty(self.bins, dtype=torch.int64)
        library().histogram(ctypes.c_void_p(x.data_ptr()), ctypes.c_int64(x.numel()), ctypes.c_int64(self.bins),
                            ctypes.c_void_p(counts.data_ptr()), ctypes.c_int(torch.get_num_threads()))
        return counts
