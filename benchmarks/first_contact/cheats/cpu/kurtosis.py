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
void run(uintptr_t xp, uintptr_t yp, int rows, int n){
  const float* x=(const float*)xp; float* y=(float*)yp;
  #pragma omp parallel for
  for(int r=0;r<rows;r++){
    const float* p=x+(size_t)r*n; double a[8]={0},b[8]={0},c[8]={0},d[8]={0};
    auto add=[&](int j,double v){ double w=v*v; a[j]+=v; b[j]+=w; c[j]+=w*v; d[j]+=w*w; };
    int i=0; for(;i+8<=n;i+=8) for(int j=0;j<8;j++) add(j,p[i+j]);
    for(;i<n;i++) add(0,p[i]);
    double A=0,B=0,C=0,D=0; for(int j=0;j<8;j++){A+=a[j];B+=b[j];C+=c[j];D+=d[j];}
    A/=n;B/=n;C/=n;D/=n;
    double v=B-A*A, m4=D-4*A*C+6*A*A*B-3*A*A*A*A;
    y[r]=(float)(m4/(v*v)-3);
  }
}
PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) { m.def("run", &run); }
"""
_ext = load_inline(name="k_kurtosis", cpp_sources=[_SRC], no_implicit_headers=True,
                   extra_cflags=["-O3","-march=native","-fopenmp"], extra_ldflags=["-fopenmp"])


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()

    def forward(self, x):
        x = x.contiguous()
        y = torch.empty(x.shape[0])
        _ext.run(x.data_ptr(), y.data_ptr(), *x.shape)
        return y
