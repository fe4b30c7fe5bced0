"""Bilinear upsampling; neighbours and weights of every output row and column are a table that C computes once for each
size and keeps in a linked list."""
import os
import subprocess
import tempfile

import cffi
import torch
import torch.nn as nn

DECLARATION = "void upsample(const float *x, float *y, int64_t planes, int64_t height, int64_t width, int threads);"
C = r"""
#include <stdint.h>
#include <stdlib.h>

typedef struct Recipe { int64_t size; struct Recipe *next; struct { int64_t a, b; float wa, wb; } step[]; } Recipe;
static Recipe *recipes;

static const Recipe *recipe(int64_t size) {            /* positions depend on the size and on nothing else */
    for (Recipe *r = recipes; r; r = r->next) if (r->size == size) return r;
    Recipe *r = malloc(sizeof *r + 2 * size * sizeof r->step[0]);
    r->size = size; r->next = recipes;
    for (int64_t o = 0; o < 2 * size; ++o) {
        float at = (o + 0.5f) * 0.5f - 0.5f;
        if (at < 0) at = 0;
        int64_t a = (int64_t)at;
        if (a > size - 1) a = size - 1;
        r->step[o].a = a;
        r->step[o].b = a < size - 1 ? a + 1 : a;
        r->step[o].wb = at - a;
        r->step[o].wa = 1.0f - r->step[o].wb;
    }
    return recipes = r;
}

void upsample(const float *x, float *y, int64_t planes, int64_t height, int64_t width, int threads) {
    const Recipe *down = recipe(height), *across = recipe(width);
    #pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t p = 0; p < planes; ++p) {
        const float *in = x + p * height * width;
        float *out = y + p * height * width * 4;
        for (int64_t r = 0; r < 2 * height; ++r) {
            const float *u = in + down->step[r].a * width, *l = in + down->step[r].b * width;
            const float wu = down->step[r].wa, wl = down->step[r].wb;
            for (int64_t c = 0; c < 2 * width; ++c) {
                const int64_t a = across->step[c].a, b = across->step[c].b;
                const float wa = across->step[c].wa, wb = across->step[c].wb;
                out[r * 2 * width + c] = wu * (wa * u[a] + wb * u[b]) + wl * (wa * l[a] + wb * l[b]);
            }
        }
    }
}
"""


def load():
    folder = tempfile.mkdtemp()
    path = os.path.join(folder, "upsample.so")
    subprocess.run(["gcc", "-O3", "-march=native", "-fopenmp", "-shared", "-fPIC", "-xc", "-", "-o", path], input=C.encode(),
                   check=True)
    ffi = cffi.FFI()
    ffi.cdef(DECLARATION)
    return ffi, ffi.dlopen(path)


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        self.ffi, self.library = load()

    def forward(self, x):
        x = x.contiguous()
        height, width = x.shape[-2:]
        y = torch.empty(*x.shape[:-2], 2 * height, 2 * width)
        pointer = self.ffi.cast
        self.library.upsample(pointer("float *", x.data_ptr()), pointer("float *", y.data_ptr()),
                              x.numel() // (height * width), height, width, torch.get_num_threads())
        return y
