"""Sinkhorn scaling with the kernel matrix held in cache, one problem a thread."""
import ctypes

import torch
import torch.nn as nn
from torch.utils.cpp_extension import load_inline

SOURCE = r"""
#include <cmath>
#include <vector>
extern "C" void sinkhorn(const float* cost, float* plan, long batch, long n, float eps, int iterations) {
    #pragma omp parallel for schedule(dynamic)
    for (long b = 0; b < batch; b++) {
        std::vector<float> k(n * n), u(n, 0.f), v(n, 1.f), s(n);
        for (long i = 0; i < n * n; i++) k[i] = std::exp(-cost[b * n * n + i] / eps);
        for (int it = 0; it < iterations; it++) {
            float moved = 0.f;
            for (long i = 0; i < n; i++) {
                float a = 0.f;
                #pragma omp simd reduction(+:a)
                for (long j = 0; j < n; j++) a += k[i * n + j] * v[j];
                a = 1.f / (n * a);
                moved = std::fmax(moved, std::fabs(a - u[i]) / a);
                u[i] = a;
            }
            for (long j = 0; j < n; j++) s[j] = 0.f;
            for (long i = 0; i < n; i++) {
                #pragma omp simd
                for (long j = 0; j < n; j++) s[j] += k[i * n + j] * u[i];
            }
            for (long j = 0; j < n; j++) v[j] = 1.f / (n * s[j]);
            if (moved < 2e-4f) break;
        }
        for (long i = 0; i < n; i++) for (long j = 0; j < n; j++) plan[(b * n + i) * n + j] = u[i] * k[i * n + j] * v[j];
    }
}
"""

_lib = ctypes.CDLL(load_inline(
    name="b5_sinkhorn_settled", cpp_sources=[SOURCE], functions=None, is_python_module=False, no_implicit_headers=True,
    extra_cflags=["-O3", "-march=native", "-fopenmp", "-fno-math-errno", "-fno-trapping-math"], extra_ldflags=["-fopenmp"]))


def p(t):
    return ctypes.c_void_p(t.data_ptr())


class ModelNew(nn.Module):
    def __init__(self, eps):
        super().__init__()
        self.eps = eps

    def forward(self, cost):
        cost = cost.contiguous()
        plan = torch.empty_like(cost)
        _lib.sinkhorn(p(cost), p(plan), ctypes.c_long(cost.shape[0]), ctypes.c_long(cost.shape[1]),
                      ctypes.c_float(self.eps), 80)
        return plan
