"""Scatter-add without atomics: every thread owns a strip of columns and walks all the edges in their order, so that the
sums are those of a serial loop, to the bit, with any number of threads."""
import ctypes
import os
import subprocess
import tempfile
from functools import lru_cache

import torch
import torch.nn as nn

CODE = """
#include <omp.h>
#include <cstdint>
#include <cstring>
extern "C" int index_add(const float* base, const int64_t* index, const float* message, float* out, int64_t nodes,
                         int64_t edges, int64_t width, int threads) {
    for (int64_t e = 0; e < edges; ++e) if (index[e] < 0 || index[e] >= nodes) return 1;
    #pragma omp parallel num_threads(threads)
    {
        int64_t t = omp_get_thread_num(), n = omp_get_num_threads();
        int64_t strips = (width + 15) / 16;
        int64_t from = strips * t / n * 16, to = strips * (t + 1) / n * 16;
        if (to > width) to = width;
        if (from < to) {
            for (int64_t i = 0; i < nodes; ++i)
                memcpy(out + i * width + from, base + i * width + from, (to - from) * sizeof(float));
            for (int64_t e = 0; e < edges; ++e) {
                float* o = out + index[e] * width;
                const float* m = message + e * width;
                #pragma omp simd
                for (int64_t c = from; c < to; ++c) o[c] += m[c];
            }
        }
    }
    return 0;
}
"""


@lru_cache(maxsize=None)
def native(flags=("-O3", "-march=native", "-fopenmp")):
    folder = tempfile.mkdtemp()
    subprocess.run(["g++", *flags, "-shared", "-fPIC", "-xc++", "-", "-o", f"{folder}/strips.so"],
                   input=CODE.encode(), check=True)
    return ctypes.CDLL(os.path.join(folder, "strips.so"))


class ModelNew(nn.Module):
    def forward(self, base, index, messages):
        base, index, messages = base.contiguous(), index.contiguous(), messages.contiguous()
        out = torch.empty_like(base)
        p, n = ctypes.c_void_p, ctypes.c_int64
        if native().index_add(p(base.data_ptr()), p(index.data_ptr()), p(messages.data_ptr()), p(out.data_ptr()),
                              n(base.shape[0]), n(index.shape[0]), n(base.shape[1]), torch.get_num_threads()):
            raise IndexError("index out of range")
        return out
