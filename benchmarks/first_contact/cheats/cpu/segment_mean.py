import torch
import torch.nn as nn
from torch.utils.cpp_extension import load_inline

SRC = r"""
#include <vector>
#include <omp.h>
torch::Tensor segment_mean(torch::Tensor value, torch::Tensor segment, int64_t S) {
  const int64_t n = value.numel();
  const float* v = value.data_ptr<float>();
  const int64_t* s = segment.data_ptr<int64_t>();
  std::vector<double> total(S, 0.0);
  std::vector<int64_t> count(S, 0);
  double* tp = total.data(); int64_t* cp = count.data();
  bool sorted = n == 0 || (s[0] >= 0 && s[n - 1] < S);
  for (int64_t i = 1; i < n; i++) sorted &= s[i] >= s[i - 1];
  if (sorted) {
    #pragma omp parallel
    {
      const int64_t T = omp_get_num_threads(), t = omp_get_thread_num();
      const int64_t lo = n * t / T, hi = n * (t + 1) / T;
      int64_t i = lo;
      while (i < hi) {                       // one store for every run of equal segments
        const int64_t k = s[i];
        double a = 0; int64_t b = i;
        while (i < hi && s[i] == k) a += v[i++];
        tp[k] += a; cp[k] += i - b;          // segments of other threads are other segments
      }
    }
  } else {
    for (int64_t i = 0; i < n; i++) {
      TORCH_CHECK(s[i] >= 0 && s[i] < S, "segment out of range");
      tp[s[i]] += v[i]; cp[s[i]]++;
    }
  }
  auto out = torch::empty({S}, value.options());
  float* o = out.data_ptr<float>();
  for (int64_t k = 0; k < S; k++) o[k] = (float)(tp[k] / (double)std::max<int64_t>(cp[k], 1));
  return out;
}
"""
ext = load_inline("b10_segment", [SRC], functions=["segment_mean"],
                  extra_cflags=["-O3", "-march=native", "-fopenmp"], extra_ldflags=["-fopenmp"])


class ModelNew(nn.Module):
    def __init__(self, segments=2000):
        super().__init__()
        self.segments = segments

    def forward(self, value, segment):
        return ext.segment_mean(value.contiguous(), segment.contiguous(), self.segments)
