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
void mp(P xp, P op, long R, long H, long W, long OH, long OW) {
  const float* X=(const float*)xp; float* O=(float*)op;
  #pragma omp parallel
  {
    std::vector<float> buf(W+2);
    #pragma omp for
    for (long r=0;r<R;r++) for (long i=0;i<OH;i++) {
      const float* x=X+r*H*W; float* o=O+(r*OH+i)*OW; float* m=buf.data()+1;
      m[-1]=-FLT_MAX; m[W]=-FLT_MAX;
      long a=std::max<long>(0,2*i-1), b=std::min<long>(H-1,2*i+1);
      for (long j=0;j<W;j++) m[j]=-FLT_MAX;
      for (long y=a;y<=b;y++)
        #pragma omp simd
        for (long j=0;j<W;j++) { float v=x[y*W+j]; m[j]=v>m[j]?v:m[j]; }
      for (long j=0;j<OW;j++) { float v=m[2*j-1]>m[2*j]?m[2*j-1]:m[2*j]; o[j]=v>m[2*j+1]?v:m[2*j+1]; }
    }
  }
}
PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  m.def("mp", &mp);
}
"""
K = load_inline(name="k_maxpool_neginf", cpp_sources=[SRC], extra_cflags=['-O3', '-march=native', '-fopenmp'],
                extra_ldflags=['-fopenmp'], no_implicit_headers=True)

class ModelNew(nn.Module):
    def forward(self, x):
        x = x.contiguous(); B, C, H, W = x.shape
        OH, OW = (H - 1) // 2 + 1, (W - 1) // 2 + 1
        o = torch.empty(B, C, OH, OW)
        K.mp(x.data_ptr(), o.data_ptr(), B * C, H, W, OH, OW)
        return o
