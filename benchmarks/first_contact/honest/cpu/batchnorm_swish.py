import torch
import torch.nn as nn
from torch.utils.cpp_extension import load_inline

CPP = r"""
#include <torch/extension.h>
#include <cmath>

torch::Tensor bn_swish(torch::Tensor xin, torch::Tensor weight, torch::Tensor bias, torch::Tensor rmean, torch::Tensor rvar,
                       bool train, double momentum, double eps) {
    auto x = xin.contiguous();
    TORCH_CHECK(x.scalar_type() == torch::kFloat && x.dim() == 4, "float32 NCHW");
    auto y = torch::empty_like(x);
    const int64_t N = x.size(0), C = x.size(1), S = x.size(2) * x.size(3);
    TORCH_CHECK(!train || N * S > 1, "Expected more than 1 value per channel when training");
    const float* p = x.data_ptr<float>();
    float* q = y.data_ptr<float>();
    auto w = weight.contiguous(), b = bias.contiguous();
    const float *pw = w.data_ptr<float>(), *pb = b.data_ptr<float>();
    float *rm = rmean.data_ptr<float>(), *rv = rvar.data_ptr<float>();
    at::parallel_for(0, C, 1, [&](int64_t c0, int64_t c1) {
        for (int64_t c = c0; c < c1; c++) {
            double mean, var;
            if (train) {
                double s = 0;
                for (int64_t n = 0; n < N; n++) {
                    const float* r = p + (n * C + c) * S;
                    double t0 = 0, t1 = 0, t2 = 0, t3 = 0;
                    int64_t i = 0;
                    for (; i + 4 <= S; i += 4) { t0 += r[i]; t1 += r[i + 1]; t2 += r[i + 2]; t3 += r[i + 3]; }
                    for (; i < S; i++) t0 += r[i];
                    s += (t0 + t1) + (t2 + t3);
                }
                const double cnt = double(N) * S;
                mean = s / cnt;
                double m2 = 0;
                for (int64_t n = 0; n < N; n++) {
                    const float* r = p + (n * C + c) * S;
                    double t0 = 0, t1 = 0;
                    int64_t i = 0;
                    for (; i + 2 <= S; i += 2) { double a = r[i] - mean, d = r[i + 1] - mean; t0 += a * a; t1 += d * d; }
                    for (; i < S; i++) { double a = r[i] - mean; t0 += a * a; }
                    m2 += t0 + t1;
                }
                var = m2 / cnt;
                rm[c] = float(momentum * mean + (1 - momentum) * rm[c]);
                rv[c] = float(momentum * (m2 / (cnt - 1)) + (1 - momentum) * rv[c]);
            } else {
                mean = rm[c];
                var = rv[c];
            }
            const double scale = pw[c] / std::sqrt(var + eps);
            const double shift = pb[c] - mean * scale;
            for (int64_t n = 0; n < N; n++) {
                const float* r = p + (n * C + c) * S;
                float* o = q + (n * C + c) * S;
                for (int64_t i = 0; i < S; i++) {
                    const float v = float(r[i] * scale + shift);
                    float t = v + 3.f;
                    t = t < 0.f ? 0.f : t;
                    t = t > 6.f ? 6.f : t;
                    o[i] = v * t / 6.f;
                }
            }
        }
    });
    return y;
}
"""
ext = load_inline(name="bn_swish_ext", cpp_sources=CPP, functions=["bn_swish"], extra_cflags=["-O3", "-march=native"])


class ModelNew(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.bn = nn.BatchNorm2d(channels, momentum=0.2)

    def forward(self, x):
        bn = self.bn
        if self.training:
            bn.num_batches_tracked.add_(1)
        return ext.bn_swish(x, bn.weight.detach(), bn.bias.detach(), bn.running_mean, bn.running_var, bn.training, bn.momentum, bn.eps)
