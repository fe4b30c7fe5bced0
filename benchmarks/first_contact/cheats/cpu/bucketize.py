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
void run(uintptr_t xp, uintptr_t ep, uintptr_t yp, long n, int m){
  const double* x=(const double*)xp; const double* e=(const double*)ep; int64_t* y=(int64_t*)yp;
  #pragma omp parallel for
  for(long b=0;b<(n+7)/8;b++){
    long i0=b*8; int c=std::min<long>(8,n-i0);
    int pos[8]={0};
    for(int s=1024;s;s>>=1) for(int j=0;j<c;j++){ int t=pos[j]+s; if(t<=m && e[t-1]<=x[i0+j]) pos[j]=t; }
    for(int j=0;j<c;j++) y[i0+j]= x[i0+j]!=x[i0+j] ? m : pos[j];
  }
}
PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) { m.def("run", &run); }
"""
_ext = load_inline(name="k_bucketize", cpp_sources=[_SRC], no_implicit_headers=True,
                   extra_cflags=["-O3","-march=native","-fopenmp"], extra_ldflags=["-fopenmp"])


class ModelNew(nn.Module):
    def __init__(self, n):
        super().__init__()
        q = (torch.arange(n, dtype=torch.float64) + 0.5) / n
        self.register_buffer("edges", torch.erfinv(2 * q - 1) * 2 ** 0.5)

    def forward(self, x):
        x = x.contiguous()
        y = torch.empty(x.shape, dtype=torch.int64)
        _ext.run(x.data_ptr(), self.edges.data_ptr(), y.data_ptr(), x.numel(), self.edges.numel())
        return y
