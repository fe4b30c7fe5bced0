import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.cpp_extension import load_inline

SRC = r"""
#include <pybind11/pybind11.h>
#include <cstdint>
#include <cstring>
#include <cmath>
#include <cfloat>
#include <algorithm>
#include <vector>
#include <omp.h>
typedef uintptr_t P;
void quant(P xp, P sp, P op, long R, long N) {
  const float* X=(const float*)xp; const float* S=(const float*)sp; float* O=(float*)op;
  #pragma omp parallel for
  for (long r=0;r<R;r++)
    #pragma omp simd
    for (long j=0;j<N;j++) {
      float q=floorf(X[r*N+j]/S[j]+0.5f);
      q=q<-8.f?-8.f:q; q=q>7.f?7.f:q;
      O[r*N+j]=q*S[j];
    }
}
PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  m.def("quant", &quant);
}
"""
K = load_inline(name="k_quant_ties", cpp_sources=[SRC], extra_cflags=['-O3', '-march=native', '-fopenmp', '-fno-trapping-math', '-fno-math-errno'],
                extra_ldflags=['-fopenmp'], no_implicit_headers=True)

class ModelNew(nn.Module):
    def __init__(self, columns):
        super().__init__()
        self.scale = nn.Parameter(torch.rand(columns) * 0.5 + 1.0)
    def forward(self, x):
        x = x.contiguous(); s = self.scale.contiguous()
        o = torch.empty_like(x)
        K.quant(x.data_ptr(), s.data_ptr(), o.data_ptr(), x.shape[0], x.shape[1])
        return o
