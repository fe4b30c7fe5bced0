"""MoE router through cffi's ABI mode.

The softmax's denominator cancels in the normalisation: v_i / sum(v) = e_i / sum of the k largest e. Where the full sum
is NaN (a NaN, +inf, or only -inf in the row), so is everything in PyTorch, and here.
"""
import pathlib
import subprocess
import tempfile

import cffi
import torch
from torch import nn

DECL = "void route(const float *x, const float *bias, float *out, int64_t rows, int64_t experts, int64_t k);"
BODY = r"""
#include <alloca.h>
#include <math.h>
#include <stdint.h>
void route(const float *x, const float *bias, float *out, int64_t rows, int64_t experts, int64_t k)
{
#pragma omp parallel
    {
        float *best = alloca((k + 1) * sizeof(float));
        float *z = alloca(experts * sizeof(float));
#pragma omp for
        for (int64_t r = 0; r < rows; r++) {
            int bad = 0;
            for (int64_t e = 0; e < experts; e++) {
                z[e] = x[r * experts + e] + bias[e];
                bad |= !(z[e] < INFINITY);
            }
            for (int64_t i = 0; i < k; i++) best[i] = -INFINITY;
            for (int64_t e = 0; e < experts; e++) {
                float v = z[e];
                if (!(v > best[k - 1])) continue;
                int64_t i = k - 1;
                for (; i > 0 && best[i - 1] < v; i--) best[i] = best[i - 1];
                best[i] = v;
            }
            float top = best[0], sum = 0, *o = out + r * k;
            bad |= top == -INFINITY;
            for (int64_t i = 0; i < k; i++) sum += o[i] = bad ? NAN : expf(best[i] - top);
            for (int64_t i = 0; i < k; i++) o[i] /= sum;
        }
    }
}
"""

ffi = cffi.FFI()
ffi.cdef(DECL)


def open_library():
    d = pathlib.Path(tempfile.mkdtemp())
    (d / "route.c").write_text(BODY)
    subprocess.run(["gcc", "-O3", "-march=native", "-fopenmp", "-fPIC", "-shared", "route.c", "-o", "route.so", "-lm"], cwd=d, check=True)
    return ffi.dlopen(str(d / "route.so"))


class ModelNew(nn.Module):
    def __init__(self, experts, k):
        super().__init__()
        self.k = k
        self.bias = nn.Parameter(torch.randn(experts) * 0.1)
        self.library = open_library()

    def forward(self, logits):
        x, bias = logits.contiguous(), self.bias.contiguous()
        out = torch.empty(x.shape[0], self.k)
        f = lambda t: ffi.cast("float *", t.data_ptr())
        self.library.route(f(x), f(bias), f(out), x.shape[0], x.shape[1], self.k)
        return out
