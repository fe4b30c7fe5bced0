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
void nn(P qp, P pp, P op, long Q, long N) {
  const float* q=(const float*)qp; const float* p=(const float*)pp; float* O=(float*)op;
  const int G=10; float lo[3],hi[3],s[3];
  for (int d=0;d<3;d++){ lo[d]=INFINITY; hi[d]=-INFINITY; }
  for (long i=0;i<N;i++) for (int d=0;d<3;d++){ lo[d]=std::min(lo[d],p[3*i+d]); hi[d]=std::max(hi[d],p[3*i+d]); }
  bool ok=true; float far=INFINITY;
  for (int d=0;d<3;d++){ float w=hi[d]-lo[d]; if (!(w<1e30f)) ok=false; s[d]=w>0?G/w:0.f; float e=3.f*w/G; far=std::min(far,e*e); }
  auto cell=[&](float v,int d){ float f=(v-lo[d])*s[d]; f=f>0.f?f:0.f; f=f<G-1?f:(float)(G-1); return (int)f; };
  std::vector<int> st(G*G*G+1,0), id(N), cl(N);
  if (ok) {
    for (long i=0;i<N;i++){ cl[i]=(cell(p[3*i],0)*G+cell(p[3*i+1],1))*G+cell(p[3*i+2],2); st[cl[i]+1]++; }
    for (int k=0;k<G*G*G;k++) st[k+1]+=st[k];
    std::vector<int> w(st.begin(),st.end()-1);
    for (long i=0;i<N;i++) id[w[cl[i]]++]=(int)i;
  }
  #pragma omp parallel for
  for (long i=0;i<Q;i++) {
    float best=INFINITY; float x=q[3*i],y=q[3*i+1],z=q[3*i+2];
    auto see=[&](long j){ float a=x-p[3*j],b=y-p[3*j+1],c=z-p[3*j+2]; float d=a*a+b*b+c*c; best=d<best?d:best; };
    if (ok) {
      int cx=cell(x,0),cy=cell(y,1),cz=cell(z,2);
      for (int a=std::max(0,cx-2);a<=std::min(G-1,cx+2);a++) for (int b=std::max(0,cy-2);b<=std::min(G-1,cy+2);b++)
        for (int k=st[(a*G+b)*G+std::max(0,cz-2)];k<st[(a*G+b)*G+std::min(G-1,cz+2)+1];k++) see(id[k]);
    }
    if (!(best<far)) for (long j=0;j<N;j++) see(j);     // nothing near
    O[i]=sqrtf(best);
  }
}
PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  m.def("nn", &nn);
}
"""
K = load_inline(name="k_nearest_cells", cpp_sources=[SRC], extra_cflags=['-O3', '-march=native', '-fopenmp'],
                extra_ldflags=['-fopenmp'], no_implicit_headers=True)

class ModelNew(nn.Module):
    def forward(self, q, p):
        q = q.contiguous(); p = p.contiguous()
        o = torch.empty(q.shape[0])
        K.nn(q.data_ptr(), p.data_ptr(), o.data_ptr(), q.shape[0], p.shape[0])
        return o
