"""Registers a dispatcher operator of its own (TORCH_LIBRARY) and calls it by torch.ops; load_inline without pybind."""
import torch
import torch.nn as nn
from torch.utils.cpp_extension import load_inline

SOURCE = r"""
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <torch/library.h>
#include <cmath>

static inline float exponential(float x) {
    x = x < -104.f ? -104.f : x;
    x = x > 89.f ? 89.f : x;                              // beyond: infinity
    float n = __builtin_rintf(x * 1.44269504f);
    float r = __builtin_fmaf(n, -0.693145752f, x);
    r = __builtin_fmaf(n, -1.42860677e-6f, r);
    float p = 1.9875691500e-4f;
    p = __builtin_fmaf(p, r, 1.3981999507e-3f);
    p = __builtin_fmaf(p, r, 8.3334519073e-3f);
    p = __builtin_fmaf(p, r, 4.1665795894e-2f);
    p = __builtin_fmaf(p, r, 1.6666665459e-1f);
    p = __builtin_fmaf(p, r, 5.0000001201e-1f);
    p = __builtin_fmaf(p, r * r, r) + 1.f;
    int k = (int)n, h = k >> 1;
    union { int32_t i; float f; } a, b;
    a.i = (h + 127) << 23; b.i = (k - h + 127) << 23;
    return p * a.f * b.f;
}

static at::Tensor group_norm_silu(const at::Tensor& input, int64_t groups, const at::Tensor& weight, const at::Tensor& bias,
                                  double epsilon) {
    const at::Tensor x = input.contiguous(), w = weight.contiguous(), b = bias.contiguous();
    at::Tensor y = at::empty_like(x);
    const int64_t channels = x.size(1), per = channels / groups, area = x.numel() / (x.size(0) * channels);
    const float *in = x.const_data_ptr<float>(), *g = w.const_data_ptr<float>(), *s = b.const_data_ptr<float>();
    float* out = y.mutable_data_ptr<float>();
    at::parallel_for(0, x.size(0) * groups, 1, [&](int64_t begin, int64_t end) {
        for (int64_t job = begin; job < end; ++job) {
            const float* p = in + job * per * area;
            float* o = out + job * per * area;
            const int64_t count = per * area;
            double a[8] = {}, q[8] = {}, mean = 0, variance = 0;
            int64_t n8 = count / 8 * 8;
            for (int64_t i = 0; i < n8; i += 8) for (int l = 0; l < 8; ++l) a[l] += p[i + l];
            for (int64_t i = n8; i < count; ++i) a[0] += p[i];
            for (double t : a) mean += t;
            mean /= count;
            for (int64_t i = 0; i < n8; i += 8)
                for (int l = 0; l < 8; ++l) { double d = p[i + l] - mean; q[l] += d * d; }
            for (int64_t i = n8; i < count; ++i) { double d = p[i] - mean; q[0] += d * d; }
            for (double t : q) variance += t;
            const double scale = 1 / std::sqrt(variance / count + epsilon);
            for (int64_t c = 0; c < per; ++c) {
                const int64_t channel = job % groups * per + c;
                const float fs = (float)(scale * g[channel]), ft = s[channel];
                for (int64_t i = c * area; i < (c + 1) * area; ++i) {
                    const float t = (float)(p[i] - mean) * fs + ft;
                    o[i] = t / (1.0f + exponential(-t));
                }
            }
        }
    });
    return y;
}

TORCH_LIBRARY(contact_honest, m) { m.def("group_norm_silu(Tensor x, int groups, Tensor w, Tensor b, float eps) -> Tensor"); }
TORCH_LIBRARY_IMPL(contact_honest, CompositeExplicitAutograd, m) { m.impl("group_norm_silu", group_norm_silu); }
"""

if not hasattr(torch.ops.contact_honest, "group_norm_silu"):
    load_inline("contact_honest_gn", SOURCE, is_python_module=False, no_implicit_headers=True,
                extra_cflags=["-O3", "-march=native", "-fno-math-errno", "-fno-trapping-math"])


class ModelNew(nn.Module):
    def __init__(self, groups, channels):
        super().__init__()
        self.norm = nn.GroupNorm(groups, channels)

    def forward(self, x):
        n = self.norm
        return torch.ops.contact_honest.group_norm_silu(x, n.num_groups, n.weight, n.bias, n.eps)
