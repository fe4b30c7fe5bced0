"""Training-mode batch norm + ReLU. The module tree is the reference's; only BatchNorm2d is subclassed."""
import ctypes
import logging
import os
import subprocess
import tempfile

import torch
from torch import nn

log = logging.getLogger("bn_nested")
if os.environ.get("BN_NESTED_DEBUG"):
    logging.basicConfig(level=logging.DEBUG)

_C = r"""
#include <math.h>
#include <stdint.h>
typedef int64_t i64;
/* one channel per iteration: statistics in double, in two passes, then the affine map */
void bn_relu(const float *x, float *y, const float *w, const float *b, float *rm, float *rv,
             i64 N, i64 C, i64 S, double eps, double mom, int training, int nt)
{
    #pragma omp parallel for num_threads(nt) schedule(static)
    for (i64 c = 0; c < C; ++c) {
        double mean, var;
        if (training) {
            double s = 0, q = 0; const i64 cnt = N * S;
            for (i64 n = 0; n < N; ++n) {
                const float *p = x + (n * C + c) * S;
                #pragma omp simd reduction(+:s)
                for (i64 j = 0; j < S; ++j) s += p[j];
            }
            mean = s / cnt;
            for (i64 n = 0; n < N; ++n) {
                const float *p = x + (n * C + c) * S;
                #pragma omp simd reduction(+:q)
                for (i64 j = 0; j < S; ++j) { double d = p[j] - mean; q += d * d; }
            }
            var = q / cnt;
            rm[c] = (float)((1 - mom) * rm[c] + mom * mean);
            rv[c] = (float)((1 - mom) * rv[c] + mom * (q / (cnt - 1)));
        } else { mean = rm[c]; var = rv[c]; }
        const float inv = (float)(1.0 / sqrt(var + eps));
        const float mu = (float)mean, k = inv * w[c], o = b[c];
        for (i64 n = 0; n < N; ++n) {
            const float *p = x + (n * C + c) * S; float *r = y + (n * C + c) * S;
            #pragma omp simd
            for (i64 j = 0; j < S; ++j) { float v = (p[j] - mu) * k + o; r[j] = v < 0 ? 0.f : v; }
        }
    }
}
"""


class _Native:
    """Compiles on first use."""

    fn = None

    def __call__(self, *args):
        if self.fn is None:
            with tempfile.TemporaryDirectory() as d:
                open(os.path.join(d, "bn.c"), "w").write(_C)
                cmd = "gcc -O3 -mavx2 -mfma -fno-trapping-math -fopenmp -shared -fPIC bn.c -o bn.so -lm".split()
                log.debug("building: %s", cmd)
                subprocess.run(cmd, cwd=d, check=True)
                self.fn = ctypes.CDLL(os.path.join(d, "bn.so")).bn_relu
            p, l, f, i = ctypes.c_void_p, ctypes.c_int64, ctypes.c_double, ctypes.c_int
            self.fn.argtypes = [p] * 6 + [l] * 3 + [f, f, i, i]
            self.fn.restype = None
        self.fn(*args)


native = _Native()


class FusedBatchNormReLU(nn.BatchNorm2d):
    @torch.no_grad()
    def forward(self, x):
        self._check_input_dim(x)
        x = x.contiguous()
        y = torch.empty_like(x)
        n, c = x.shape[:2]
        momentum = self.momentum
        if self.training:
            self.num_batches_tracked.add_(1)
            if momentum is None:
                momentum = 1.0 / float(self.num_batches_tracked)
        native(x.data_ptr(), y.data_ptr(), self.weight.data_ptr(), self.bias.data_ptr(), self.running_mean.data_ptr(),
               self.running_var.data_ptr(), n, c, x.numel() // (n * c), self.eps, momentum, int(self.training),
               torch.get_num_threads())
        log.debug("%s training=%s", tuple(x.shape), self.training)
        return y


class ModelNew(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.bn = FusedBatchNormReLU(channels)

    def forward(self, x):
        return self.bn(x)
