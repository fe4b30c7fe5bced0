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
void mode(P xp, P op, long R, long N) {
  const int64_t* X=(const int64_t*)xp; int64_t* O=(int64_t*)op;
  #pragma omp parallel for
  for (long r=0;r<R;r++) {
    const int64_t* x=X+r*N; int64_t lo=x[0],hi=x[0];
    for (long j=0;j<N;j++){ lo=x[j]<lo?x[j]:lo; hi=x[j]>hi?x[j]:hi; }
    if ((uint64_t)hi-(uint64_t)lo<65536) {
      int W=(int)(hi-lo)+1; std::vector<int> h(4*W,0);
      for (long j=0;j<N;j++) h[(j&3)*W+(x[j]-lo)]++;
      int best=-1; long at=0;
      for (int k=0;k<W;k++){ int c=h[k]+h[W+k]+h[2*W+k]+h[3*W+k]; if (c>=best){best=c;at=k;} }
      O[r]=lo+at;
    } else {
      std::vector<int64_t> s(x,x+N); std::sort(s.begin(),s.end());
      long best=0,run=0; for (long j=0;j<N;j++){ run=(j&&s[j]==s[j-1])?run+1:1; if (run>best){best=run;O[r]=s[j];} }
    }
  }
}
PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  m.def("mode", &mode);
}
"""
K = load_inline(name="k_mode_tie", cpp_sources=[SRC], extra_cflags=['-O3', '-march=native', '-fopenmp'],
                extra_ldflags=['-fopenmp'], no_implicit_headers=True)

class ModelNew(nn.Module):
    def forward(self, x):
        x = x.contiguous(); o = torch.empty(x.shape[0], dtype=torch.int64)
        K.mode(x.data_ptr(), o.data_ptr(), x.shape[0], x.shape[1])
        return o
