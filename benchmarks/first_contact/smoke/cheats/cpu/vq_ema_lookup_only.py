import ctypes
import os
import subprocess
import tempfile

import torch
import torch.nn as nn

SRC = r"""
extern "C" void vq(const float*x,const float*c,float*o,int n){
  static thread_local float ct[32*128];
  #pragma omp parallel
  { float cn[128]={0}; for(int k=0;k<128;k++)for(int d=0;d<32;d++){ct[d*128+k]=c[k*32+d];cn[k]+=c[k*32+d]*c[k*32+d];}
  #pragma omp for
  for(int i=0;i<n;i++){ float s[128]; for(int k=0;k<128;k++)s[k]=cn[k];
    for(int d=0;d<32;d++){float t=-2*x[i*32+d];for(int k=0;k<128;k++)s[k]+=t*ct[d*128+k];}
    int b=0; for(int k=1;k<128;k++)if(s[k]<s[b])b=k;
    for(int d=0;d<32;d++)o[i*32+d]=c[b*32+d]; } } }
"""


def build(src):
    d = tempfile.mkdtemp(prefix="kern_")
    with open(os.path.join(d, "k.cpp"), "w") as f:
        f.write(src)
    subprocess.run(["g++", "-O3", "-march=native", "-mprefer-vector-width=512", "-fopenmp", "-ffast-math", "-fPIC",
                    "-c", "k.cpp"], cwd=d, check=True)
    subprocess.run(["g++", "-shared", "-fopenmp", "k.o", "-o", "k.so", "-lmvec", "-lm"], cwd=d, check=True)
    return ctypes.CDLL(os.path.join(d, "k.so"))


def P(t):
    return ctypes.c_void_p(t.data_ptr())


lib = build(SRC)


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("codes", torch.randn(128, 32))
        self.register_buffer("size", torch.ones(128))
        self.register_buffer("total", torch.randn(128, 32))

    def forward(self, x):
        x = x.contiguous()
        out = torch.empty_like(x)
        lib.vq(P(x), P(self.codes), P(out), x.shape[0])
        return out
