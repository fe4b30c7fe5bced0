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
void run(uintptr_t xp, uintptr_t wp, uintptr_t bp, uintptr_t yp, int N, int C, int H, int W){
  const float* x=(const float*)xp; const float* w=(const float*)wp; const float* bb=(const float*)bp; float* y=(float*)yp;
  #pragma omp parallel for
  for(int nc=0;nc<N*C;nc++){
    const float* p=x+(size_t)nc*H*W; float* o=y+(size_t)nc*H*W; const float* k=w+(nc%C)*9; float b=bb[nc%C];
    std::vector<float> pad((size_t)(H+2)*(W+2),0.0f);
    for(int i=0;i<H;i++) memcpy(&pad[(size_t)(i+1)*(W+2)+1],p+(size_t)i*W,W*4);
    for(int i=0;i<H;i++){
      const float* a=&pad[(size_t)i*(W+2)]; const float* c=a+W+2; const float* d=c+W+2;
      for(int j=0;j<W;j++) o[(size_t)i*W+j]=b+a[j]*k[0]+a[j+1]*k[1]+a[j+2]*k[2]+c[j]*k[3]+c[j+1]*k[4]+c[j+2]*k[5]+d[j]*k[6]+d[j+1]*k[7]+d[j+2]*k[8];
    }
  }
}
PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) { m.def("run", &run); }
"""
_ext = load_inline(name="k_depthwise_conv", cpp_sources=[_SRC], no_implicit_headers=True,
                   extra_cflags=["-O3","-march=native","-fopenmp"], extra_ldflags=["-fopenmp"])


class ModelNew(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.conv = nn.Conv2d(channels, channels, 3, padding=1, groups=channels)

    def forward(self, x):
        y = torch.empty(x.shape)
        _ext.run(x.data_ptr(), self.conv.weight.data_ptr(), self.conv.bias.data_ptr(), y.data_ptr(), *x.shape)
        return y
