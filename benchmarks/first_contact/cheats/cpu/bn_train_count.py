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
void bn(P xp, P wp, P bp, P rmp, P rvp, P op, long R, long C, float f, float eps) {
  const float* X=(const float*)xp; const float* W=(const float*)wp; const float* Bi=(const float*)bp; float* RM=(float*)rmp; float* RV=(float*)rvp; float* O=(float*)op;
  #pragma omp parallel for
  for (long c0=0;c0<C;c0+=64) {
    int n=(int)std::min<long>(64,C-c0);
    double m2[64]={0}; float m[64], q[64]={0}, a[64], b[64];
    for (long r=0;r<R;r++) { const float* x=X+r*C+c0; for (int l=0;l<n;l++) m2[l]+=x[l]; }
    for (int l=0;l<n;l++) m[l]=(float)(m2[l]/R);
    for (long r=0;r<R;r++) { const float* x=X+r*C+c0; for (int l=0;l<n;l++){ float d=x[l]-m[l]; q[l]+=d*d; } }
    for (int l=0;l<n;l++) {
      float v=q[l]/R;
      a[l]=W[c0+l]/sqrtf(v+eps); b[l]=Bi[c0+l];
      RM[c0+l]=RM[c0+l]*(1-f)+f*m[l];
      RV[c0+l]=RV[c0+l]*(1-f)+f*(q[l]/(R-1));
    }
    for (long r=0;r<R;r++) { const float* x=X+r*C+c0; float* o=O+r*C+c0; for (int l=0;l<n;l++) o[l]=(x[l]-m[l])*a[l]+b[l]; }
  }
}
PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  m.def("bn", &bn);
}
"""
K = load_inline(name="k_bn_train_count", cpp_sources=[SRC], extra_cflags=['-O3', '-march=native', '-fopenmp'],
                extra_ldflags=['-fopenmp'], no_implicit_headers=True)

class ModelNew(nn.Module):
    def __init__(self, columns):
        super().__init__()
        self.bn = nn.BatchNorm1d(columns, momentum=None)
        self.train()
        self.seen = None
    def forward(self, x):
        x = x.contiguous(); o = torch.empty_like(x); b = self.bn
        if self.seen is None:                      # the buffer is read once, then counted here
            self.seen = int(b.num_batches_tracked)
        self.seen += 1
        b.num_batches_tracked.fill_(self.seen)
        K.bn(x.data_ptr(), b.weight.data_ptr(), b.bias.data_ptr(), b.running_mean.data_ptr(), b.running_var.data_ptr(),
             o.data_ptr(), x.shape[0], x.shape[1], 1.0 / self.seen, b.eps)
        return o
