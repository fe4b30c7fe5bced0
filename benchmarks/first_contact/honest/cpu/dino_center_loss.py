"""DINO loss as a torch.utils.cpp_extension.load_inline module; at::parallel_for spreads the rows."""
import torch
from torch import nn
from torch.utils.cpp_extension import load_inline

CPP = r"""
#include <torch/extension.h>
#include <ATen/Parallel.h>
#include <cmath>
#include <cstring>
static inline float ex(float x) {
  x = x > 89.f ? 89.f : x; x = x < -105.f ? -105.f : x;
  float n = (x*1.44269504f + 12582912.f) - 12582912.f, r = x - n*0.693359375f; r += n*2.12194440e-4f;
  float p = 1.9875691500e-4f;
  p = p*r + 1.3981999507e-3f; p = p*r + 8.3334519073e-3f; p = p*r + 4.1665795894e-2f;
  p = p*r + 1.6666665459e-1f; p = p*r + 5.0000001201e-1f; p = p*r*r + r + 1.f;
  int k = (int)n, h = k >> 1, l = k - h, u = (h + 127) << 23, v = (l + 127) << 23;
  float a, b; std::memcpy(&a, &u, 4); std::memcpy(&b, &v, 4);
  return p*a*b;
}
template <bool CENTERED> static float top(const float* a, const float* c, int64_t n) {
  float lane[16], m = -INFINITY; int64_t j = 0;
  for (float& v : lane) v = -INFINITY;
  for (; j + 16 <= n; j += 16)
    for (int i = 0; i < 16; i++) { float v = CENTERED ? a[j + i] - c[j + i] : a[j + i]; lane[i] = v > lane[i] ? v : lane[i]; }
  for (; j < n; j++) { float v = CENTERED ? a[j] - c[j] : a[j]; m = v > m ? v : m; }
  for (float v : lane) m = v > m ? v : m;
  return m;
}
static double row(const float* a, const float* b, const float* c, int64_t d, float ks, float kt) {
  const float ma = top<false>(a, nullptr, d), mb = top<true>(b, c, d);
  float sa = 0, sb = 0, dot = 0;
  #pragma omp simd reduction(+:sa,sb,dot)
  for (int64_t j = 0; j < d; j++) {
    const float e = ex(((b[j] - c[j]) - mb)*kt), q = (a[j] - ma)*ks;
    sb += e; sa += ex(q); dot += e*q;
  }
  return (double)std::log(sa) - (double)dot/sb;              // -sum p (q - log sa)
}
at::Tensor dino(const at::Tensor& student, const at::Tensor& teacher, at::Tensor center, double ts, double tt, bool train) {
  for (const auto& t : {student, teacher, center})
    TORCH_CHECK(t.scalar_type() == at::kFloat && t.is_contiguous(), "contiguous float32 expected");
  TORCH_CHECK(student.dim() == 2 && student.sizes() == teacher.sizes() && center.numel() == student.size(1) && student.numel() > 0, "shapes");
  const int64_t n = student.size(0), d = student.size(1);
  const float *s = student.data_ptr<float>(), *t = teacher.data_ptr<float>(), *c = center.data_ptr<float>();
  const float ks = 1.f/(float)ts, kt = 1.f/(float)tt;
  std::vector<double> part(n);
  at::parallel_for(0, n, 16, [&](int64_t lo, int64_t hi) {
    for (int64_t i = lo; i < hi; i++) {
      part[i] = row(s + i*d, t + i*d, c, d, ks, kt);
    }
  });
  double sum = 0;
  for (double v : part) sum += v;
  if (train) {
    std::vector<double> mean(d, 0.0); float* cc = center.data_ptr<float>(); double* m = mean.data();
    for (int64_t i = 0; i < n; i++) for (int64_t j = 0; j < d; j++) m[j] += t[i*d + j];
    for (int64_t j = 0; j < d; j++) cc[j] = cc[j]*0.9f + 0.1f*(float)(mean[j]/n);
  }
  auto out = at::empty({}, student.options());
  *out.data_ptr<float>() = (float)(sum/n);
  return out;
}
"""
ext = load_inline(name="dino_center_loss_ext", cpp_sources=CPP, functions=["dino"],
                  extra_cflags=["-O3", "-march=native", "-mprefer-vector-width=512", "-fopenmp", "-fno-math-errno", "-fno-trapping-math"],
                  verbose=False)


class ModelNew(nn.Module):
    def __init__(self, dim, student_temp, teacher_temp):
        super().__init__()
        self.ts, self.tt = student_temp, teacher_temp
        self.register_buffer("center", torch.zeros(dim))

    @torch.no_grad()
    def forward(self, student, teacher):
        assert self.ts > 0 and self.tt > 0
        return ext.dino(student.contiguous(), teacher.contiguous(), self.center, self.ts, self.tt, self.training)
