"""Batch norm in training mode through load_inline: moves the running statistics in place from C++, as PyTorch does, and
uses them in evaluation mode."""
import torch
import torch.nn as nn
from torch.utils.cpp_extension import load_inline

CPP = r"""
#include <torch/extension.h>
#include <ATen/Parallel.h>
#include <cmath>

torch::Tensor norm_relu(torch::Tensor x, torch::Tensor gain, torch::Tensor shift, torch::Tensor mean, torch::Tensor variance,
                        torch::Tensor calls, bool training, double momentum, double epsilon) {
    x = x.contiguous();
    auto y = torch::empty_like(x);
    const int64_t n = x.size(0), c = x.size(1), area = x.numel() / (n * c);
    const float* in = x.data_ptr<float>();
    float* out = y.data_ptr<float>();
    const float *g = gain.data_ptr<float>(), *s = shift.data_ptr<float>();
    float *rm = mean.data_ptr<float>(), *rv = variance.data_ptr<float>();
    TORCH_CHECK(mean.is_contiguous() && variance.is_contiguous() && gain.is_contiguous() && shift.is_contiguous());
    if (training) *calls.data_ptr<int64_t>() += 1;
    at::parallel_for(0, c, 1, [&](int64_t from, int64_t to) {
        for (int64_t ch = from; ch < to; ++ch) {
            double m, v;
            if (training) {
                double a[8] = {};
                for (int64_t b = 0; b < n; ++b) {
                    const float* p = in + (b * c + ch) * area;
                    int64_t i = 0;
                    for (; i + 8 <= area; i += 8) for (int l = 0; l < 8; ++l) a[l] += p[i + l];
                    for (; i < area; ++i) a[0] += p[i];
                }
                m = 0;
                for (double t : a) m += t;
                m /= double(n * area);
                double q[8] = {};
                for (int64_t b = 0; b < n; ++b) {
                    const float* p = in + (b * c + ch) * area;
                    int64_t i = 0;
                    for (; i + 8 <= area; i += 8) for (int l = 0; l < 8; ++l) { double d = p[i + l] - m; q[l] += d * d; }
                    for (; i < area; ++i) { double d = p[i] - m; q[0] += d * d; }
                }
                v = 0;
                for (double t : q) v += t;
                rm[ch] = float((1 - momentum) * rm[ch] + momentum * m);
                rv[ch] = float((1 - momentum) * rv[ch] + momentum * (v / double(n * area - 1)));
                v /= double(n * area);
            } else { m = rm[ch]; v = rv[ch]; }
            const double scale = 1.0 / std::sqrt(v + epsilon);
            const float fs = float(scale * g[ch]), fm = float(m), ft = s[ch];
            const float rest = float(m - fm);                       // what float drops of the mean
            for (int64_t b = 0; b < n; ++b) {
                const float* p = in + (b * c + ch) * area;
                float* o = out + (b * c + ch) * area;
                for (int64_t i = 0; i < area; ++i) {
                    float t = ((p[i] - fm) - rest) * fs + ft;
                    o[i] = t < 0 ? 0.0f : t;
                }
            }
        }
    });
    return y;
}
"""

module = load_inline(name="batchnorm_buffers", cpp_sources=CPP, functions=["norm_relu"],
                     extra_cflags=["-O3", "-march=native"], no_implicit_headers=True)


class ModelNew(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.norm = nn.BatchNorm2d(channels)

    @torch.no_grad()
    def forward(self, x):
        norm = self.norm
        return module.norm_relu(x, norm.weight, norm.bias, norm.running_mean, norm.running_var, norm.num_batches_tracked,
                                norm.training, norm.momentum, norm.eps)
