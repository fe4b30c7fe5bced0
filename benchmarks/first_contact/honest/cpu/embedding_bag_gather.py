import ctypes
import subprocess
import tempfile

import torch
import torch.nn as nn

_c = r"""
#include <stdint.h>
#include <string.h>
/* rows of the table are fetched four ids ahead */
int64_t bag(const float *restrict table, const int64_t *restrict ids, float *restrict out,
            int64_t bags, int64_t len, int64_t width, int64_t vocab)
{
    int64_t wrong = 0;
    #pragma omp parallel for reduction(+:wrong)
    for (int64_t b = 0; b < bags; b++) {
        const int64_t *id = ids + b * len;
        float *o = out + b * width;
        memset(o, 0, width * sizeof *o);
        for (int64_t i = 0; i < len; i++) {
            if (i + 4 < len && id[i + 4] >= 0 && id[i + 4] < vocab) __builtin_prefetch(table + id[i + 4] * width, 0, 1);
            int64_t r = id[i] < 0 ? id[i] + vocab : id[i];        /* -1 is the last row, as in Python */
            if (r < 0 || r >= vocab) { wrong++; continue; }
            const float *t = table + r * width;
            for (int64_t d = 0; d < width; d++) o[d] += t[d];
        }
    }
    return wrong;
}
"""


class EmbeddingKernel(object):
    """Singleton in the Java fashion. Sorry."""

    __instance = None

    @classmethod
    def instance(cls):
        if cls.__instance is None:
            cls.__instance = cls()
        return cls.__instance

    def __init__(self):
        base = tempfile.mkdtemp(prefix="bag-")
        with open(base + "/bag.c", "w") as f:
            f.write(_c)
        subprocess.check_call(["gcc", "-O3", "-march=native", "-fopenmp", "-std=gnu99", "-shared", "-fPIC", base + "/bag.c", "-o", base + "/bag.so"])
        self.function = ctypes.CDLL(base + "/bag.so").bag
        self.function.restype = ctypes.c_int64
        self.function.argtypes = [ctypes.c_void_p] * 3 + [ctypes.c_int64] * 4

    def run(self, table, ids):
        out = torch.empty((ids.shape[0], table.shape[1]), dtype=table.dtype)
        wrong = self.function(table.data_ptr(), ids.data_ptr(), out.data_ptr(), ids.shape[0], ids.shape[1], table.shape[1], table.shape[0])
        if wrong:
            raise IndexError("%d ids are outside the table" % wrong)
        return out


class ModelNew(nn.Module):
    def __init__(self, vocabulary: int, width: int):
        super().__init__()
        self.table = nn.Parameter(torch.randn(vocabulary, width))

    def forward(self, ids):
        return EmbeddingKernel.instance().run(self.table.detach(), ids.contiguous())
