"""Segment mean by a counting sort of the row numbers (CSR), then one thread per segment: no atomics, fixed order of sums.
The scratch is one anonymous mapping per call."""
import ctypes
import os
import subprocess
import tempfile

import torch
import torch.nn as nn

C = r"""
#define _GNU_SOURCE
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>

int segment_mean(const float *x, const int64_t *seg, float *out, int64_t n, int64_t width, int64_t segments)
{
    size_t bytes = (segments + 1 + n) * sizeof(int32_t);
    int32_t *start = mmap(0, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);   /* zeros */
    if (start == MAP_FAILED) return 2;
    int32_t *row = start + segments + 1;
    for (int64_t i = 0; i < n; i++) {
        if (seg[i] < 0 || seg[i] >= segments) { munmap(start, bytes); return 1; }
        start[seg[i] + 1]++;
    }
    for (int64_t s = 0; s < segments; s++) start[s + 1] += start[s];
    /* fill moves every start to its end, which is the next start */
    for (int64_t i = 0; i < n; i++) row[start[seg[i]]++] = (int32_t)i;
    #pragma omp parallel for schedule(dynamic, 16)
    for (int64_t s = 0; s < segments; s++) {
        int32_t a = s ? start[s - 1] : 0, b = start[s];
        float *restrict o = out + s * width;
        memset(o, 0, width * sizeof(float));
        for (int32_t r = a; r < b; r++) {
            const float *restrict v = x + (int64_t)row[r] * width;
            for (int64_t c = 0; c < width; c++) o[c] += v[c];
        }
        float count = b - a > 1 ? (float)(b - a) : 1.f;
        for (int64_t c = 0; c < width; c++) o[c] /= count;
    }
    munmap(start, bytes);
    return 0;
}
"""


class Kernel:
    def __init__(self):
        self.dir = tempfile.TemporaryDirectory(prefix="segment")
        lib = os.path.join(self.dir.name, "segment.so")
        subprocess.run(["gcc", "-x", "c", "-", "-O3", "-march=native", "-fopenmp", "-shared", "-fPIC", "-o", lib], input=C, text=True, check=True)
        self.f = ctypes.CDLL(lib).segment_mean

    def __call__(self, *args):
        return self.f(*(ctypes.c_void_p(a.data_ptr()) if torch.is_tensor(a) else ctypes.c_int64(a) for a in args))


kernel = Kernel()


class ModelNew(nn.Module):
    def __init__(self, segments):
        super().__init__()
        self.segments = segments

    def forward(self, x, segment):
        x, segment = x.contiguous(), segment.contiguous()
        out = torch.empty(self.segments, x.shape[1])
        error = kernel(x, segment, out, x.shape[0], x.shape[1], self.segments)
        if error == 1:
            raise IndexError("segment number out of range")
        if error:
            raise MemoryError
        return out
