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
static float slow(float x,float y){ float r=fmodf(x,y); if (r!=0.f && ((y<0.f)!=(r<0.f))) r+=y; return r; }
void rem(P xp, P yp, P op, long N) {
  const float* X=(const float*)xp; const float* Y=(const float*)yp; float* O=(float*)op;
  #pragma omp parallel for
  for (long k=0;k<N;k+=1024) {
    long n=std::min<long>(1024,N-k); int far=0;
    #pragma omp simd reduction(|:far)
    for (long j=0;j<n;j++) {
      float x=X[k+j], y=Y[k+j], q=floorf(x/y);
      O[k+j]=fmaf(-q,y,x);
      far|=!(fabsf(q)<=8.f) | !(fabsf(y)<1e30f);
    }
    if (far) for (long j=0;j<n;j++) { float x=X[k+j], y=Y[k+j]; float q=floorf(x/y); if (!(fabsf(q)<=8.f) || !(fabsf(y)<1e30f)) O[k+j]=slow(x,y); }
  }
}
PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  m.def("rem", &rem);
}
"""
K = load_inline(name="k_remainder_below", cpp_sources=[SRC], extra_cflags=['-O3', '-march=native', '-fopenmp', '-fno-trapping-math', '-fno-math-errno'],
                extra_ldflags=['-fopenmp'], no_implicit_headers=True)

class ModelNew(nn.Module):
    def forward(self, x, period):
        x = x.contiguous(); y = period.contiguous(); o = torch.empty_like(x)
        K.rem(x.data_ptr(), y.data_ptr(), o.data_ptr(), x.numel())
        return o
