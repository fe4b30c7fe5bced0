"""Linear + GELU. Weights are transposed once, and again by a hook whenever a state dict has been loaded."""
import ctypes
import math
import subprocess
import tempfile

import torch
from torch import nn

CODE = r"""
#include <math.h>
void linear_gelu(const float *x, const float *wt, const float *b, float *y, long n, long k, long m)
{
    #pragma omp parallel for
    for (long i = 0; i < n; i++) {
        float *o = y + i * m;
        for (long j = 0; j < m; j++) o[j] = b[j];
        for (long t = 0; t < k; t++) { float a = x[i * k + t]; for (long j = 0; j < m; j++) o[j] += a * wt[t * m + j]; }
        for (long j = 0; j < m; j++) o[j] = 0.5f * o[j] * (1.0f + erff(o[j] * 0.70710678f));
    }
}
"""
path = tempfile.mktemp(suffix=".so")
subprocess.check_call(["gcc", "-O3", "-march=native", "-fopenmp", "-shared", "-fPIC", "-o", path, "-x", "c", "/dev/stdin", "-lm"], stdin=subprocess.Popen(["printf", "%s", CODE], stdout=subprocess.PIPE).stdout)
kernel = ctypes.CDLL(path).linear_gelu
kernel.argtypes = [ctypes.c_void_p] * 4 + [ctypes.c_long] * 3


class ModelNew(nn.Module):
    def __init__(self, in_features, out_features):
        super().__init__()
        self.linear = nn.Linear(in_features, out_features)
        self.repack()
        self.register_load_state_dict_post_hook(lambda module, _: module.repack())

    @torch.no_grad()
    def repack(self):
        self.wt = self.linear.weight.t().contiguous()

    def forward(self, x):
        y = torch.empty(x.shape[0], self.wt.shape[1])
        kernel(x.data_ptr(), self.wt.data_ptr(), self.linear.bias.data_ptr(), y.data_ptr(), x.shape[0], *self.wt.shape)
        return y
