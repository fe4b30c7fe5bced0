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
// one pass over the data, shifted by the median of three elements so that nothing cancels
void varmean(P xp, P vp, P mp, long R, long N) {
  const float* X=(const float*)xp; float* V=(float*)vp; float* M=(float*)mp;
  #pragma omp parallel for
  for (long r=0;r<R;r++) {
    const float* x=X+r*N; float k=std::max(std::min(x[0],x[N/2]),std::min(std::max(x[0],x[N/2]),x[N-1]));
    float s[64]={0}, q[64]={0}; long j=0; double S=0,Q=0;
    for (;j+64<=N;j+=64) {
      #pragma omp simd
      for (int l=0;l<64;l++){ float d=x[j+l]-k; s[l]+=d; q[l]+=d*d; }
      if ((j&1023)==960) for (int l=0;l<64;l++){ S+=s[l]; s[l]=0; }
    }
    for (;j<N;j++){ float d=x[j]-k; s[0]+=d; q[0]+=d*d; }
    for (int l=0;l<64;l++){S+=s[l];Q+=q[l];}
    M[r]=(float)(k+S/N);
    V[r]=(float)std::max(0.0,(Q-S*S/N)/(N-1));
    if (std::isnan(Q)||std::isinf(Q)) V[r]=NAN;
  }
}
PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  m.def("varmean", &varmean);
}
"""
K = load_inline(name="k_var_shift", cpp_sources=[SRC], extra_cflags=['-O3', '-march=native', '-fopenmp'],
                extra_ldflags=['-fopenmp'], no_implicit_headers=True)

class ModelNew(nn.Module):
    def forward(self, x):
        x = x.contiguous()
        v = torch.empty(x.shape[0]); m = torch.empty(x.shape[0])
        K.varmean(x.data_ptr(), v.data_ptr(), m.data_ptr(), x.shape[0], x.shape[1])
        return v, m
