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
void norm(P xp, P op, long R, long N) {
  const float* X=(const float*)xp; float* O=(float*)op;
  #pragma omp parallel for
  for (long r=0;r<R;r++) {
    const float* x=X+r*N; float s[64]={0}; long j=0;
    for (;j+64<=N;j+=64)
      #pragma omp simd
      for (int l=0;l<64;l++) s[l]+=x[j+l]*x[j+l];
    for (;j<N;j++) s[0]+=x[j]*x[j];
    double t=1e-24; for (int l=0;l<64;l++) t+=s[l];
    float f=(float)(1.0/sqrt(t)); float* o=O+r*N;
    #pragma omp simd
    for (long k=0;k<N;k++) o[k]=x[k]*f;
  }
}
PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  m.def("norm", &norm);
}
"""
K = load_inline(name="k_normalize_eps", cpp_sources=[SRC], extra_cflags=['-O3', '-march=native', '-fopenmp'],
                extra_ldflags=['-fopenmp'], no_implicit_headers=True)

class ModelNew(nn.Module):
    def forward(self, x):
        x = x.contiguous(); o = torch.empty_like(x)
        K.norm(x.data_ptr(), o.data_ptr(), x.shape[0], x.shape[1])
        return o
