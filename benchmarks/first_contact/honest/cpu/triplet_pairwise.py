"""Triplet margin loss: distances by recursive (pairwise) summation, which needs no wider type for its accuracy."""
from __future__ import annotations

import ctypes
import subprocess
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

import torch

KERNEL = r"""
#include <cmath>
template <class F> static float tree(const F& f, long lo, long hi) {
    if (hi - lo <= 32) { float s = 0; for (long i = lo; i < hi; ++i) s += f(i); return s; }
    const long mid = lo + (hi - lo) / 2;
    return tree(f, lo, mid) + tree(f, mid, hi);
}
static inline float square(float v) { return v * v; }
extern "C" void triplet(const float* a, const float* p, const float* n, float* each, float* out, long rows, long width) {
    #pragma omp parallel for schedule(guided)
    for (long r = 0; r < rows; ++r) {
        const float *x = a + r * width, *y = p + r * width, *z = n + r * width;
        const float dp = std::sqrt(tree([=](long i) { return square(x[i] - y[i] + 1e-6f); }, 0, width));
        const float dn = std::sqrt(tree([=](long i) { return square(x[i] - z[i] + 1e-6f); }, 0, width));
        const float v = 1.0f + dp - dn;
        each[r] = v < 0 ? 0 : v;          // NaN passes
    }
    *out = tree([=](long i) { return each[i]; }, 0, rows) / rows;
}
"""


@dataclass
class Library:
    source: str
    flags: tuple[str, ...] = ("-O3", "-fopenmp", "-shared", "-fPIC")
    handle: ctypes.CDLL | None = field(default=None, repr=False)

    def __getattr__(self, name: str):
        if self.handle is None:
            with tempfile.NamedTemporaryFile("w", suffix=".cpp", delete=False) as file:
                file.write(self.source)
            binary = Path(file.name).with_suffix(".so")
            subprocess.run(["g++", *self.flags, file.name, "-o", str(binary)], check=True)
            self.handle = ctypes.CDLL(str(binary))
        return getattr(self.handle, name)


library = Library(KERNEL)


class ModelNew(torch.nn.Module):
    def forward(self, a: torch.Tensor, p: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
        a, p, n = (t.contiguous() for t in (a, p, n))
        each, out = a.new_empty(len(a)), a.new_empty(())
        library.triplet(*[ctypes.c_void_p(t.data_ptr()) for t in (a, p, n, each, out)], *map(ctypes.c_long, a.shape))
        return out
