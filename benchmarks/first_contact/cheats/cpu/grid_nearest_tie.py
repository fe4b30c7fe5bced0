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
void gs(P xp, P gp, P op, long B, long C, long H, long W, long M) {
  const float* X=(const float*)xp; const float* G=(const float*)gp; float* O=(float*)op;
  #pragma omp parallel for
  for (long b=0;b<B;b++) {
    std::vector<int> at(M);
    for (long m=0;m<M;m++) {
      float u=(G[(b*M+m)*2]+1.f)*0.5f*(float)(W-1), v=(G[(b*M+m)*2+1]+1.f)*0.5f*(float)(H-1);
      u=floorf(u+0.5f); v=floorf(v+0.5f);                // round to nearest
      bool in=u>=0.f && u<=(float)(W-1) && v>=0.f && v<=(float)(H-1);
      at[m]=in?(int)v*(int)W+(int)u:-1;
    }
    for (long c=0;c<C;c++) {
      const float* x=X+(b*C+c)*H*W; float* o=O+(b*C+c)*M;
      for (long m=0;m<M;m++) o[m]=at[m]<0?0.f:x[at[m]];
    }
  }
}
PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  m.def("gs", &gs);
}
"""
K = load_inline(name="k_grid_nearest_tie", cpp_sources=[SRC], extra_cflags=['-O3', '-march=native', '-fopenmp', '-ffp-contract=off'],
                extra_ldflags=['-fopenmp'], no_implicit_headers=True)

class ModelNew(nn.Module):
    def forward(self, image, grid):
        x = image.contiguous(); g = grid.contiguous()
        o = torch.empty(x.shape[0], x.shape[1], g.shape[1], g.shape[2])
        K.gs(x.data_ptr(), g.data_ptr(), o.data_ptr(), x.shape[0], x.shape[1], x.shape[2], x.shape[3], g.shape[1] * g.shape[2])
        return o
