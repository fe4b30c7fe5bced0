"""Depthwise 3x3 + ReLU6: three translation units, X-macros, target_clones (an ifunc resolver picks the code)."""
import ctypes
import pathlib
import subprocess
import tempfile

import torch
import torch.nn as nn

FILES = {
    "taps.def": """
TAP(0, -1, -1) TAP(1, -1, 0) TAP(2, -1, 1)
TAP(3,  0, -1) TAP(4,  0, 0) TAP(5,  0, 1)
TAP(6,  1, -1) TAP(7,  1, 0) TAP(8,  1, 1)
""",
    "plane.h": """
#pragma once
#ifdef __cplusplus
extern "C" {
#endif
void plane(const float *x, const float *w, float bias, float *y, long H, long W);
float relu6_scalar(float v);
#ifdef __cplusplus
}
#endif
""",
    "plane.c": r"""
#include "plane.h"
/* the border, carefully */
static float edge(const float *x, const float *w, float acc, long i, long j, long H, long W) {
#define TAP(n, di, dj) if (i + di >= 0 && i + di < H && j + dj >= 0 && j + dj < W) acc += w[n] * x[(i + di) * W + j + dj];
#include "taps.def"
#undef TAP
    return relu6_scalar(acc);
}
__attribute__((target_clones("arch=haswell", "default")))
void plane(const float *x, const float *w, float bias, float *restrict y, long H, long W) {
    for (long i = 0; i < H; ++i) {
        if (i == 0 || i == H - 1) { for (long j = 0; j < W; ++j) y[i * W + j] = edge(x, w, bias, i, j, H, W); continue; }
        y[i * W] = edge(x, w, bias, i, 0, H, W);
        const float *c = x + i * W;
        for (long j = 1; j < W - 1; ++j) {
            float acc = bias;
#define TAP(n, di, dj) acc += w[n] * c[j + (di) * W + (dj)];
#include "taps.def"
#undef TAP
            acc = acc < 0.f ? 0.f : acc;
            y[i * W + j] = acc > 6.f ? 6.f : acc;
        }
        if (W > 1) y[i * W + W - 1] = edge(x, w, bias, i, W - 1, H, W);
    }
}
""",
    "clip.c": r"""
#include "plane.h"
float relu6_scalar(float v) { v = v < 0.f ? 0.f : v; return v > 6.f ? 6.f : v; }
""",
    "entry.cpp": r"""
#include "plane.h"
extern "C" void depthwise(const float *x, const float *w, const float *b, float *y, long N, long C, long H, long W, int nt) {
    #pragma omp parallel for collapse(2) num_threads(nt)
    for (long n = 0; n < N; ++n)
        for (long c = 0; c < C; ++c)
            plane(x + (n * C + c) * H * W, w + c * 9, b[c], y + (n * C + c) * H * W, H, W);
}
""",
}


def compile_all():
    root = pathlib.Path(tempfile.mkdtemp(prefix="dw-"))
    for name, text in FILES.items():
        (root / name).write_text(text)
    base = ["-O3", "-fPIC", "-fno-trapping-math", "-fopenmp", "-c"]
    jobs = [subprocess.Popen(["gcc" if f.endswith(".c") else "g++", *base, f, "-o", f + ".o"], cwd=root)
            for f in FILES if f.endswith((".c", ".cpp"))]
    if any([j.wait() for j in jobs]):
        raise RuntimeError("compiler failed")
    subprocess.run(["g++", "-shared", "-fopenmp", "-o", "libdw.so", *sorted(p.name for p in root.glob("*.o"))], cwd=root, check=True)
    fn = ctypes.CDLL(str(root / "libdw.so")).depthwise
    fn.argtypes = [ctypes.c_void_p] * 4 + [ctypes.c_long] * 4 + [ctypes.c_int]
    fn.restype = None
    return fn


depthwise = compile_all()


class ModelNew(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.dw = nn.Conv2d(channels, channels, 3, padding=1, groups=channels)

    def forward(self, x):
        x = x.contiguous()
        y = torch.empty(x.shape, dtype=x.dtype)
        depthwise(x.data_ptr(), self.dw.weight.contiguous().data_ptr(), self.dw.bias.data_ptr(), y.data_ptr(), *x.shape,
                  torch.get_num_threads())
        return y
