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
static inline float ex(float x){
  x = std::max(x,-87.0f);
  float k = std::floor(x*1.44269504f+0.5f);
  float r = std::fma(k,-0.693359375f,x); r = std::fma(k,2.12194440e-4f,r);
  float p = 1.9875691500E-4f; p=p*r+1.3981999507E-3f; p=p*r+8.3334519073E-3f; p=p*r+4.1665795894E-2f; p=p*r+1.6666665459E-1f; p=p*r+5.0000001201E-1f;
  p = p*r*r + r + 1.0f;
  int32_t e=((int32_t)k+127)<<23; float s; memcpy(&s,&e,4);
  return p*s;
}
void run(uintptr_t xp, uintptr_t tp, uintptr_t yp, int rows, int n){
  const float* x=(const float*)xp; const int64_t* t=(const int64_t*)tp; float* y=(float*)yp;
  double total=0;
  #pragma omp parallel for reduction(+:total)
  for(int r=0;r<rows;r++){
    const float* p=x+(size_t)r*n;
    float g[16]; for(int j=0;j<16;j++) g[j]=p[0]; int u=0; for(;u+16<=n;u+=16) for(int j=0;j<16;j++) g[j]=std::max(g[j],p[u+j]); float mx=g[0]; for(int j=1;j<16;j++) mx=std::max(mx,g[j]); for(;u<n;u++) mx=std::max(mx,p[u]);
    float q[16]={0}; int e=0; for(;e+16<=n;e+=16) for(int j=0;j<16;j++) q[j]+=ex(p[e+j]-mx); double s=0; for(int j=0;j<16;j++) s+=q[j]; for(;e<n;e++) s+=ex(p[e]-mx);
    int64_t c=std::min<int64_t>(std::max<int64_t>(t[r],0),n-1);
    total += std::log(s)+mx-p[c];
  }
  y[0]=(float)(total/rows);
}
PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) { m.def("run", &run); }
"""
_ext = load_inline(name="k_cross_entropy", cpp_sources=[_SRC], no_implicit_headers=True,
                   extra_cflags=["-O3","-march=native","-fopenmp","-fno-trapping-math","-fno-math-errno"], extra_ldflags=["-fopenmp"])


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()

    def forward(self, logits, target):
        logits, target = logits.contiguous(), target.contiguous()
        y = torch.empty(())
        _ext.run(logits.data_ptr(), target.data_ptr(), y.data_ptr(), *logits.shape)
        return y
