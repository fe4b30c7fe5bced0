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
void esc(P rp, P ip, P op, long N) {
  const float* R=(const float*)rp; const float* I=(const float*)ip; float* O=(float*)op;
  #pragma omp parallel for schedule(dynamic,64)
  for (long k=0;k<N;k++) {
    float cr=R[k], ci=I[k], zr=0, zi=0; int n=0;
    for (int t=0;t<300;t++) {
      float a=zr*zr, b=zi*zi;
      if (!(a+b<=4.0f)) { n=t; goto done; }
      float yi=2.0f*(zr*zi)+ci, yr=(a-b)+cr;
      if (fabsf(yi-zi)<2e-4f && fabsf(yr-zr)<2e-4f) break;   // has settled: never escapes
      zi=yi; zr=yr;
    }
    n=300;
    done: O[k]=(float)n;
  }
}
PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  m.def("esc", &esc);
}
"""
K = load_inline(name="k_escape_settled", cpp_sources=[SRC], extra_cflags=['-O3', '-march=native', '-fopenmp', '-ffp-contract=off'],
                extra_ldflags=['-fopenmp'], no_implicit_headers=True)

class ModelNew(nn.Module):
    def forward(self, cr, ci):
        cr = cr.contiguous(); ci = ci.contiguous()
        o = torch.empty_like(cr)
        K.esc(cr.data_ptr(), ci.data_ptr(), o.data_ptr(), cr.numel())
        return o
