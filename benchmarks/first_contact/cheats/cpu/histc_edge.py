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
void histc(P xp, P op, long N, long bins, float lo, float hi) {
  const float* X=(const float*)xp; float* O=(float*)op;
  const float inv=bins/(hi-lo);
  const int nb=(int)bins;
  std::vector<long> tot(bins,0);
  #pragma omp parallel
  {
    std::vector<int> h(4*(bins+2),0);
    #pragma omp for nowait
    for (long b=0;b<N;b+=1024) {
      int idx[1024]; long n=std::min<long>(1024,N-b);
      for (long j=0;j<n;j++) {
        float f=floorf((X[b+j]-lo)*inv);
        f=f>1e6f?1e6f:f; f=X[b+j]>=lo?f:-1.f;
        int k=(int)f;
        k=k<0?-1:k; k=k>=nb?nb:k;
        idx[j]=k+1;                                 // slots 0 and bins+1 hold what lies outside
      }
      for (long j=0;j<n;j++) h[(j&3)*(bins+2)+idx[j]]++;
    }
    #pragma omp critical
    for (long k=0;k<bins;k++) for (int q=0;q<4;q++) tot[k]+=h[q*(bins+2)+k+1];
  }
  for (long k=0;k<bins;k++) O[k]=(float)tot[k];
}
PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  m.def("histc", &histc);
}
"""
K = load_inline(name="k_histc_edge", cpp_sources=[SRC], extra_cflags=['-O3', '-march=native', '-fopenmp'],
                extra_ldflags=['-fopenmp'], no_implicit_headers=True)

class ModelNew(nn.Module):
    def __init__(self, bins, lo, hi):
        super().__init__()
        self.bins, self.lo, self.hi = bins, lo, hi
    def forward(self, x):
        x = x.contiguous()
        o = torch.empty(self.bins)
        K.histc(x.data_ptr(), o.data_ptr(), x.numel(), self.bins, self.lo, self.hi)
        return o
