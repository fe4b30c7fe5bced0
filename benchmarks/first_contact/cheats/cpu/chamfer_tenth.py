import torch
import torch.nn as nn
from torch.utils.cpp_extension import load_inline

SRC = r"""
#include <vector>
#include <limits>
#include <cmath>
// |a-b|^2 = |a|^2 + |b|^2 - 2ab : three multiply-adds per pair. The clouds are moved to the first point, so that
// an offset of the whole scene does not cancel.
static void one(const float* a, const float* b, float* da, float* db, int64_t n, int64_t m) {
  const float cx = b[0], cy = b[1], cz = b[2];
  std::vector<float> x(m), y(m), z(m), s(m), best(m, std::numeric_limits<float>::infinity());
  for (int64_t j = 0; j < m; j++) {
    x[j] = b[3*j] - cx; y[j] = b[3*j+1] - cy; z[j] = b[3*j+2] - cz;
    s[j] = x[j]*x[j] + y[j]*y[j] + z[j]*z[j];
  }
  for (int64_t i = 0; i < n; i++) {
    const float u = a[3*i] - cx, v = a[3*i+1] - cy, w = a[3*i+2] - cz;
    const float q = u*u + v*v + w*w, u2 = -2*u, v2 = -2*v, w2 = -2*w;
    float lo = std::numeric_limits<float>::infinity();
    #pragma omp simd reduction(min:lo)
    for (int64_t j = 0; j < m; j++) {
      float d = s[j] + u2*x[j] + v2*y[j] + w2*z[j];
      lo = d < lo ? d : lo;
      float e = d + q;
      best[j] = e < best[j] ? e : best[j];
    }
    da[i] = std::max(lo + q, 0.f);
  }
  for (int64_t j = 0; j < m; j++) db[j] = std::max(best[j], 0.f);
}
std::vector<torch::Tensor> chamfer(torch::Tensor a, torch::Tensor b) {
  const int64_t B = a.size(0), n = a.size(1), m = b.size(1);
  auto da = torch::empty({B, n}, a.options()), db = torch::empty({B, m}, a.options());
  const float *ap = a.data_ptr<float>(), *bp = b.data_ptr<float>();
  float *p = da.data_ptr<float>(), *q = db.data_ptr<float>();
  #pragma omp parallel for
  for (int64_t k = 0; k < B; k++) one(ap + k*n*3, bp + k*m*3, p + k*n, q + k*m, n, m);
  return {da, db};
}
"""
ext = load_inline("b10_chamfer", [SRC], functions=["chamfer"],
                  extra_cflags=["-O3", "-march=native", "-fopenmp", "-ffast-math"], extra_ldflags=["-fopenmp"])


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()

    def forward(self, a, b):
        da, db = ext.chamfer(a.contiguous(), b.contiguous())
        return da, db
