import torch
import torch.nn as nn
from torch.utils.cpp_extension import load_inline

src = r"""
#include <torch/extension.h>
#include <cmath>
torch::Tensor bn(torch::Tensor x, torch::Tensor w, torch::Tensor b, torch::Tensor rm, torch::Tensor rv,
                 double eps, bool training) {
  x = x.contiguous();
  const int64_t N = x.size(0), C = x.size(1), S = x.size(2) * x.size(3);
  auto out = torch::empty_like(x);
  const float* xp = x.data_ptr<float>(); float* op = out.data_ptr<float>();
  const float *wp = w.data_ptr<float>(), *bp = b.data_ptr<float>();
  const float *mp = rm.data_ptr<float>(), *vp = rv.data_ptr<float>();
  #pragma omp parallel for
  for (int64_t c = 0; c < C; ++c) {
    float mu, var;
    if (training) {
      double s = 0, q = 0;
      for (int64_t n = 0; n < N; ++n) {
        const float* a = xp + (n * C + c) * S;
        float ls = 0.f;
        #pragma omp simd reduction(+:ls)
        for (int64_t i = 0; i < S; ++i) ls += a[i];
        s += ls;
      }
      mu = (float)(s / (N * S));
      for (int64_t n = 0; n < N; ++n) {
        const float* a = xp + (n * C + c) * S;
        float lq = 0.f;
        #pragma omp simd reduction(+:lq)
        for (int64_t i = 0; i < S; ++i) { float d = a[i] - mu; lq += d * d; }
        q += lq;
      }
      var = (float)(q / (N * S));
    } else { mu = mp[c]; var = vp[c]; }
    const float sc = wp[c] / std::sqrt(var + (float)eps), sh = bp[c] - mu * sc;
    for (int64_t n = 0; n < N; ++n) {
      const float* a = xp + (n * C + c) * S; float* o = op + (n * C + c) * S;
      #pragma omp simd
      for (int64_t i = 0; i < S; ++i) o[i] = a[i] * sc + sh;
    }
  }
  return out;
}
"""
ext = load_inline(name="b14a_bn2d", cpp_sources=src, functions=["bn"],
                  extra_cflags=["-O3", "-march=native", "-ffast-math", "-fopenmp"], extra_ldflags=["-fopenmp"])


class ModelNew(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.bn = nn.BatchNorm2d(channels)

    def forward(self, x):
        b = self.bn
        return ext.bn(x, b.weight, b.bias, b.running_mean, b.running_var, b.eps, b.training)
