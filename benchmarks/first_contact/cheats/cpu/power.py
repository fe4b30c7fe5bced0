import torch
import torch.nn as nn
from torch.utils.cpp_extension import load_inline

SRC = r"""
#include <torch/extension.h>
#include <cmath>
#include <vector>
// Power iteration until the vector has settled (two steps that change it by less than rounding does).
at::Tensor power(at::Tensor a, at::Tensor x, int64_t steps) {
    a = a.contiguous(); x = x.contiguous();
    int64_t n = a.size(0);
    auto out = torch::empty({n}, x.options());
    const float* pa = a.data_ptr<float>(); float* o = out.data_ptr<float>();
    std::vector<float> v(x.data_ptr<float>(), x.data_ptr<float>() + n), y(n);
    int still = 0;
    for (int64_t s = 0; s < steps && still < 2; s++) {
        double q = 0, e = 0;
        for (int64_t i = 0; i < n; i++) {
            const float* r = pa + i * n; float t = 0;
            #pragma omp simd reduction(+:t)
            for (int64_t j = 0; j < n; j++) t += r[j] * v[j];
            y[i] = t; q += (double)t * t;
        }
        float f = 1.f / ((float)std::sqrt(q) + 1e-12f);
        for (int64_t i = 0; i < n; i++) { float t = y[i] * f; double d = t - v[i]; e += d * d; v[i] = t; }
        still = e < 3e-7 * 3e-7 ? still + 1 : 0;
    }
    for (int64_t i = 0; i < n; i++) o[i] = v[i];
    return out;
}
"""
ext = load_inline(name="b10a_power", cpp_sources=SRC, functions=["power"], extra_cflags=["-O3", "-march=native", "-fopenmp", "-fno-math-errno"], extra_ldflags=["-fopenmp"])


class ModelNew(nn.Module):
    def __init__(self, steps):
        super().__init__()
        self.steps = steps

    def forward(self, a, x):
        return ext.power(a, x, self.steps)
