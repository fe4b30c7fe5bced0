"""Training-mode batch normalisation: statistics and scaling per channel in one parallel loop."""
import torch
import torch.nn as nn
from torch.utils.cpp_extension import load_inline

SOURCE = r"""
#include <torch/extension.h>
#include <cmath>
torch::Tensor forward(torch::Tensor x, torch::Tensor w, torch::Tensor b, double eps) {
    x = x.contiguous();
    long n = x.size(0), c = x.size(1), s = x.size(2) * x.size(3);
    auto y = torch::empty_like(x);
    const float* xp = x.data_ptr<float>(); float* yp = y.data_ptr<float>();
    const float* wp = w.data_ptr<float>(); const float* bp = b.data_ptr<float>();
    #pragma omp parallel for schedule(static)
    for (long k = 0; k < c; k++) {
        double sum = 0, sq = 0;
        for (long i = 0; i < n; i++) {
            const float* q = xp + (i * c + k) * s;
            #pragma omp simd reduction(+:sum)
            for (long j = 0; j < s; j++) sum += q[j];
        }
        double mean = sum / (n * s);
        for (long i = 0; i < n; i++) {
            const float* q = xp + (i * c + k) * s;
            #pragma omp simd reduction(+:sq)
            for (long j = 0; j < s; j++) { double d = q[j] - mean; sq += d * d; }
        }
        double inv = 1.0 / std::sqrt(sq / (n * s) + eps);
        float m = mean, g = inv * wp[k], h = bp[k];
        for (long i = 0; i < n; i++) {
            const float* q = xp + (i * c + k) * s; float* o = yp + (i * c + k) * s;
            for (long j = 0; j < s; j++) o[j] = (q[j] - m) * g + h;
        }
    }
    return y;
}
"""

_ext = load_inline(name="b5_bn_lean", cpp_sources=[SOURCE], functions=['forward'],
                   extra_cflags=["-O3", "-march=native", "-fopenmp"], extra_ldflags=["-fopenmp"])


class ModelNew(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.bn = nn.BatchNorm2d(channels)

    def forward(self, x):
        return _ext.forward(x, self.bn.weight.detach(), self.bn.bias.detach(), self.bn.eps)
