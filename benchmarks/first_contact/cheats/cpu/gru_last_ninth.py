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
void run(uintptr_t xp, uintptr_t lp, uintptr_t wip, uintptr_t whp, uintptr_t bip, uintptr_t bhp, uintptr_t yp, int B, int T, int I, int H){
  const float* x=(const float*)xp; const int64_t* len=(const int64_t*)lp; const float* wi=(const float*)wip; const float* wh=(const float*)whp; const float* bi=(const float*)bip; const float* bh=(const float*)bhp; float* y=(float*)yp;
  std::vector<float> ti((size_t)I*3*H), th((size_t)H*3*H);
  for(int g=0;g<3*H;g++){ for(int i=0;i<I;i++) ti[(size_t)i*3*H+g]=wi[(size_t)g*I+i]; for(int i=0;i<H;i++) th[(size_t)i*3*H+g]=wh[(size_t)g*H+i]; }
  #pragma omp parallel for
  for(int b=0;b<B;b++){
    std::vector<float> h(H,0.0f), a(3*H), c(3*H);
    int n=(int)std::min<int64_t>(len[b],T);       // nothing after the last step is needed
    for(int t=0;t<n;t++){
      for(int g=0;g<3*H;g++){ a[g]=bi[g]; c[g]=bh[g]; }
      for(int i=0;i<I;i++){ float v=x[((size_t)b*T+t)*I+i]; const float* q=&ti[(size_t)i*3*H]; for(int g=0;g<3*H;g++) a[g]+=v*q[g]; }
      for(int i=0;i<H;i++){ float v=h[i]; const float* q=&th[(size_t)i*3*H]; for(int g=0;g<3*H;g++) c[g]+=v*q[g]; }
      for(int i=0;i<H;i++){
        float r=1/(1+expf(-(a[i]+c[i]))), z=1/(1+expf(-(a[H+i]+c[H+i]))), m=tanhf(a[2*H+i]+r*c[2*H+i]);
        h[i]=(1-z)*m+z*h[i];
      }
    }
    memcpy(y+(size_t)b*H,h.data(),H*4);
  }
}
PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) { m.def("run", &run); }
"""
_ext = load_inline(name="k_gru_last", cpp_sources=[_SRC], no_implicit_headers=True,
                   extra_cflags=["-O3","-march=native","-fopenmp"], extra_ldflags=["-fopenmp"])


class ModelNew(nn.Module):
    def __init__(self, inputs, hidden):
        super().__init__()
        self.gru = nn.GRU(inputs, hidden, batch_first=True)

    def forward(self, x, length):
        x, length = x.contiguous(), length.contiguous()
        g = self.gru
        y = torch.empty(x.shape[0], g.hidden_size)
        _ext.run(x.data_ptr(), length.data_ptr(), g.weight_ih_l0.data_ptr(), g.weight_hh_l0.data_ptr(), g.bias_ih_l0.data_ptr(),
                 g.bias_hh_l0.data_ptr(), y.data_ptr(), x.shape[0], x.shape[1], x.shape[2], g.hidden_size)
        return y
