"""Parallel prefix sum: every chunk is summed, carries are scanned, every chunk is scanned from its carry."""
import ctypes
import pathlib
import subprocess
import tempfile

import torch
import torch.nn as nn

CHUNK = 1024

TEMPLATE = """
#include <cstdint>
#include <vector>
#define CHUNK @CHUNK@

extern "C" void scan(const float* x, float* y, double* carry, int64_t rows, int64_t n) {
    const int64_t chunks = (n + CHUNK - 1) / CHUNK;
    #pragma omp parallel
    {
        // pass 1: totals
        #pragma omp for collapse(2) schedule(static)
        for (int64_t r = 0; r < rows; ++r)
            for (int64_t c = 0; c < chunks; ++c) {
                const int64_t b = c * CHUNK, e = b + CHUNK < n ? b + CHUNK : n;
                double t = 0;
                for (int64_t i = b; i < e; ++i) t += x[r * n + i];
                carry[r * chunks + c] = t;
            }
        // pass 2: exclusive scan of the totals (a handful per row)
        #pragma omp for schedule(static)
        for (int64_t r = 0; r < rows; ++r) {
            double t = 0;
            for (int64_t c = 0; c < chunks; ++c) { double own = carry[r * chunks + c]; carry[r * chunks + c] = t; t += own; }
        }
        // pass 3: the chunk itself
        #pragma omp for collapse(2) schedule(static)
        for (int64_t r = 0; r < rows; ++r)
            for (int64_t c = 0; c < chunks; ++c) {
                const int64_t b = c * CHUNK, e = b + CHUNK < n ? b + CHUNK : n;
                double t = carry[r * chunks + c];
                for (int64_t i = b; i < e; ++i) { t += x[r * n + i]; y[r * n + i] = (float)t; }
            }
    }
}
""".replace("@CHUNK@", str(CHUNK))


class ModelNew(nn.Module):
    _scan = None

    def __init__(self, dim: int):
        super().__init__()
        self.dim = dim

    @classmethod
    def scan(cls):
        if cls._scan is None:
            d = pathlib.Path(tempfile.mkdtemp(prefix="scan-"))
            (d / "scan.cpp").write_text(TEMPLATE)
            subprocess.run(["g++", "-O3", "-march=native", "-fopenmp", "-shared", "-fPIC", "-o", d / "scan.so", d / "scan.cpp"], check=True)
            f = ctypes.CDLL(str(d / "scan.so")).scan
            f.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64]
            f.restype = None
            cls._scan = staticmethod(f)
        return cls._scan

    def forward(self, x):
        # any dimension: move it to the end (a view), make that contiguous, move back (a view)
        t = x.movedim(self.dim, -1).contiguous()
        n = t.shape[-1]
        rows = t.numel() // n
        y = torch.empty_like(t)
        carry = torch.empty(rows * ((n + CHUNK - 1) // CHUNK), dtype=torch.float64)
        self.scan()(t.data_ptr(), y.data_ptr(), carry.data_ptr(), rows, n)
        return y.movedim(-1, self.dim)
