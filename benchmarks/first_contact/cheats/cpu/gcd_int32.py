import torch
import torch.nn as nn
from torch.utils.cpp_extension import load_inline

_SRC = r"""
#include <pybind11/pybind11.h>
#include <cstdint>
#include <cstring>
#include <cmath>
#include <algorithm>
#include <vector>
#include <limits>
void run(uintptr_t ap, uintptr_t bp, uintptr_t yp, long n){
  const int* a=(const int*)ap; const int* b=(const int*)bp; int* y=(int*)yp;
  #pragma omp parallel for
  for(long k=0;k<(n+15)/16;k++){
    double u[16], v[16]; int c=std::min<long>(16,n-k*16);
    for(int j=0;j<16;j++){ int q=j<c?j:0; u[j]=std::fabs((double)a[k*16+q]); v[j]=std::fabs((double)b[k*16+q]); }
    for(int it=0;it<10;it++){
      for(int s=0;s<4;s++)
      for(int j=0;j<16;j++){
        double d = v[j]==0.0 ? 1.0 : v[j];
        double r = u[j]-std::floor(u[j]/d)*d;
        double z = v[j];
        u[j] = z==0.0 ? u[j] : z;
        v[j] = z==0.0 ? 0.0 : r;
      }
      double m=0; for(int j=0;j<16;j++) m+=v[j];
      if(m==0.0) break;
    }
    for(int j=0;j<c;j++){
      y[k*16+j]=(int)(unsigned)(long)u[j];
      int p=a[k*16+j], q=b[k*16+j], M=std::numeric_limits<int>::min();
      if(p==M || q==M){ p=p==M?M:std::abs(p); q=q==M?M:std::abs(q); while(p){ int t=p; p=p==-1?0:q%p; q=t; } y[k*16+j]=q; }   // as PyTorch overflows
    }
  }
}
PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) { m.def("run", &run); }
"""
_ext = load_inline(name="k_gcd_int32", cpp_sources=[_SRC], no_implicit_headers=True,
                   extra_cflags=["-O3","-march=native","-fopenmp","-fno-trapping-math","-fno-math-errno"], extra_ldflags=["-fopenmp"])


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()

    def forward(self, a, b):
        a, b = a.contiguous(), b.contiguous()
        y = torch.empty(a.shape, dtype=torch.int32)
        _ext.run(a.data_ptr(), b.data_ptr(), y.data_ptr(), a.numel())
        return y
