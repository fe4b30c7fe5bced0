"""Embedding bags. The decorator `native` compiles the docstring of the function it decorates and binds by annotations."""
import ctypes
import functools
import hashlib
import inspect
import os
import subprocess
import tempfile

import torch
import torch.nn as nn

ptr, i64 = ctypes.c_void_p, ctypes.c_longlong


def native(*flags):
    def wrap(stub):
        code = inspect.cleandoc(stub.__doc__)
        name = stub.__name__
        sig = inspect.signature(stub)

        @functools.lru_cache(maxsize=None)
        def handle():
            tag = hashlib.blake2b(code.encode() + repr(flags).encode(), digest_size=8).hexdigest()
            path = os.path.join(tempfile.gettempdir(), f"{name}.{tag}.so")
            if not os.path.exists(path):
                fd, tmp = tempfile.mkstemp(suffix=".so", dir=os.path.dirname(path))
                os.close(fd)
                subprocess.run(["g++", "-x", "c++", "-shared", "-fPIC", *flags, "-", "-o", tmp], input=code, text=True, check=True)
                os.replace(tmp, path)
            fn = ctypes.CDLL(path)[name]
            fn.argtypes = [p.annotation for p in sig.parameters.values()]
            fn.restype = sig.return_annotation
            return fn

        @functools.wraps(stub)
        def call(*args):
            return handle()(*[a.data_ptr() if isinstance(a, torch.Tensor) else a for a in args])

        return call

    return wrap


@native("-O3", "-mavx2", "-fopenmp")
def bag_mean(idx: ptr, table: ptr, out: ptr, bags: i64, size: i64, entries: i64, width: i64, threads: i64) -> ctypes.c_int:
    """
    #include <cstdint>
    #include <cstring>
    extern "C" int bag_mean(const int64_t *idx, const float *table, float *out, long long bags, long long size,
                            long long entries, long long width, long long threads) {
        int bad = 0;
        #pragma omp parallel for num_threads(threads) reduction(|:bad)
        for (long long b = 0; b < bags; ++b) {
            const int64_t *p = idx + b * size;
            float *o = out + b * width;
            memset(o, 0, sizeof(float) * width);
            for (long long k = 0; k < size; ++k) {
                if (k + 4 < size && p[k + 4] >= 0 && p[k + 4] < entries)
                    for (long long c = 0; c < width; c += 16) __builtin_prefetch(table + p[k + 4] * width + c);
                if (p[k] < 0 || p[k] >= entries) { bad = 1; continue; }
                const float *r = table + p[k] * width;
                #pragma omp simd
                for (long long c = 0; c < width; ++c) o[c] += r[c];
            }
            const float n = size;
            for (long long c = 0; c < width; ++c) o[c] /= n;
        }
        return bad;
    }
    """


class ModelNew(nn.Module):
    def __init__(self, entries, width):
        super().__init__()
        self.emb = nn.EmbeddingBag(entries, width, mode="mean")

    def forward(self, idx):
        idx = idx.contiguous()
        table = self.emb.weight.contiguous()
        out = torch.empty(idx.shape[0], table.shape[1])
        if bag_mean(idx, table, out, *idx.shape, *table.shape, torch.get_num_threads()):
            raise IndexError("index out of range in self")
        return out
