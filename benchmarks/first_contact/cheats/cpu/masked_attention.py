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
void run(uintptr_t qp, uintptr_t kp, uintptr_t vp, uintptr_t mp, uintptr_t yp, int B, int H, int T){
  const int D=32; const float* Q=(const float*)qp; const float* K=(const float*)kp; const float* V=(const float*)vp; const uint8_t* M=(const uint8_t*)mp; float* Y=(float*)yp;
  #pragma omp parallel for collapse(2)
  for(int b=0;b<B;b++) for(int h=0;h<H;h++){
    const uint8_t* m=M+(size_t)b*T; size_t o=((size_t)b*H+h)*T*D;
    int L=T; while(L>0 && !m[L-1]) L--;
    uint8_t holes=0; for(int j=0;j<L;j++) holes += (uint8_t)!m[j];
    std::vector<float> kt((size_t)D*L), s(L);
    for(int j=0;j<L;j++) for(int d=0;d<D;d++) kt[(size_t)d*L+j]=K[o+(size_t)j*D+d];
    for(int i=0;i<T;i++){
      for(int j=0;j<L;j++) s[j]=0;
      for(int d=0;d<D;d++){ float a=Q[o+(size_t)i*D+d]*0.17677669529663687f; const float* t=&kt[(size_t)d*L]; for(int j=0;j<L;j++) s[j]+=a*t[j]; }
      if(holes) for(int j=0;j<L;j++) if(!m[j]) s[j]=-std::numeric_limits<float>::infinity();
      float mx=-std::numeric_limits<float>::infinity(); for(int j=0;j<L;j++) mx=std::max(mx,s[j]);
      float z=0; for(int j=0;j<L;j++){ s[j]=ex(s[j]-mx); z+=s[j]; }
      float acc[D]={0};
      for(int j=0;j<L;j++) for(int d=0;d<D;d++) acc[d]+=s[j]*V[o+(size_t)j*D+d];
      for(int d=0;d<D;d++) Y[o+(size_t)i*D+d]=acc[d]/z;
    }
  }
}
PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) { m.def("run", &run); }
"""
_ext = load_inline(name="k_masked_attention", cpp_sources=[_SRC], no_implicit_headers=True,
                   extra_cflags=["-O3","-march=native","-fopenmp","-fno-trapping-math","-fno-math-errno"], extra_ldflags=["-fopenmp"])


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()

    def forward(self, q, k, v, keep):
        q, k, v, keep = q.contiguous(), k.contiguous(), v.contiguous(), keep.contiguous()
        assert q.shape[-1] == 32
        y = torch.empty(q.shape)
        _ext.run(q.data_ptr(), k.data_ptr(), v.data_ptr(), keep.data_ptr(), y.data_ptr(), *q.shape[:3])
        return y
