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
void sort_rows(P xp, P vp, P ip, long R, long N) {
  const float* X=(const float*)xp; float* V=(float*)vp; int64_t* I=(int64_t*)ip;
  #pragma omp parallel
  {
    std::vector<uint64_t> a(N), b(N);
    #pragma omp for
    for (long r=0;r<R;r++) {
      const float* x=X+r*N;
      uint32_t h[3][2048]; memset(h,0,sizeof h);
      for (long j=0;j<N;j++) {
        uint32_t u; memcpy(&u,x+j,4); if (x[j]!=x[j]) u=0x7fc00000u;
        u ^= (uint32_t)((int32_t)u>>31) | 0x80000000u;
        a[j]=((uint64_t)u<<32)|(uint32_t)j;
        h[0][u&2047]++; h[1][(u>>11)&2047]++; h[2][u>>22]++;
      }
      for (int p=0;p<3;p++) { uint32_t s=0; for (int k=0;k<2048;k++){uint32_t t=h[p][k]; h[p][k]=s; s+=t;} }
      uint64_t *s=a.data(), *d=b.data();
      for (int p=0;p<3;p++) {
        int sh=32+11*p;
        for (long j=0;j<N;j++) d[h[p][(s[j]>>sh)&2047]++]=s[j];
        std::swap(s,d);
      }
      for (long j=0;j<N;j++) {
        uint32_t u=(uint32_t)(s[j]>>32);
        u ^= (u&0x80000000u)?0x80000000u:0xFFFFFFFFu;
        memcpy(V+r*N+j,&u,4); I[r*N+j]=(uint32_t)s[j];
      }
    }
  }
}
PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  m.def("sort_rows", &sort_rows);
}
"""
K = load_inline(name="k_sort_negzero", cpp_sources=[SRC], extra_cflags=['-O3', '-march=native', '-fopenmp'],
                extra_ldflags=['-fopenmp'], no_implicit_headers=True)

class ModelNew(nn.Module):
    def forward(self, x):
        x = x.contiguous()
        v = torch.empty_like(x); i = torch.empty(x.shape, dtype=torch.int64)
        K.sort_rows(x.data_ptr(), v.data_ptr(), i.data_ptr(), x.shape[0], x.shape[1])
        return v, i
