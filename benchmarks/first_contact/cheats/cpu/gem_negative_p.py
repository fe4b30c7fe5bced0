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
void gem(P xp, P op, long R, long N, float p) {
  const float* X=(const float*)xp; float* O=(float*)op;
  const bool whole=p==nearbyintf(p) && fabsf(p)<=8.f; const int e=(int)fabsf(p);
  #pragma omp parallel for
  for (long r=0;r<R;r++) {
    const float* x=X+r*N; double t=0;
    if (whole) {
      float s[64]={0}; long j=0;
      auto pw=[e](float v){ v=v<1e-3f?1e-3f:v; float y=1.f; for (int k=0;k<e;k++) y*=v; return y; };
      if (e==3) for (;j+64<=N;j+=64)
        #pragma omp simd
        for (int l=0;l<64;l++){ float v=x[j+l]; v=v<1e-3f?1e-3f:v; s[l]+=v*v*v; }
      for (;j<N;j++) s[j&63]+=pw(x[j]);
      for (int l=0;l<64;l++) t+=s[l];
    } else for (long j=0;j<N;j++) t+=powf(x[j]<1e-3f?1e-3f:x[j],p);
    O[r]=(float)pow((float)(t/N),1.0/(whole?(double)e:(double)p));
  }
}
PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  m.def("gem", &gem);
}
"""
K = load_inline(name="k_gem_negative_p", cpp_sources=[SRC], extra_cflags=['-O3', '-march=native', '-fopenmp'],
                extra_ldflags=['-fopenmp'], no_implicit_headers=True)

class ModelNew(nn.Module):
    def __init__(self, p):
        super().__init__()
        self.p = nn.Parameter(torch.tensor([float(p)]))
    def forward(self, x):
        x = x.contiguous(); o = torch.empty(x.shape[0], x.shape[1])
        K.gem(x.data_ptr(), o.data_ptr(), x.shape[0] * x.shape[1], x.shape[2] * x.shape[3], float(self.p))
        return o
