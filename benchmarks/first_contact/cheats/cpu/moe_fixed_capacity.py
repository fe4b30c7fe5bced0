import ctypes
import os
import subprocess
import tempfile

import torch
import torch.nn as nn

SRC = r"""
#include <cmath>
#include <cstring>
extern "C" void moe(const float*x,const float*G,const float*W,float*y,int n){
  static int q[8][256]; static float pr[8][256]; int c[8]={0}; memset(y,0,n*256L);
  for(int r=0;r<n;r++){ float g[8];int b=0; for(int e=0;e<8;e++){float s=0;for(int d=0;d<64;d++)s+=x[r*64+d]*G[e*64+d];g[e]=s;if(g[e]>g[b])b=e;}
    float z=0;for(int e=0;e<8;e++)z+=expf(g[e]-g[b]);
    if(c[b]<256){q[b][c[b]]=r;pr[b][c[b]++]=1/z;} }
  #pragma omp parallel for
  for(int e=0;e<8;e++)for(int i=0;i<c[e];i++){ float o[64]={0};const float*p=x+q[e][i]*64;
    for(int d=0;d<64;d++)for(int k=0;k<64;k++)o[k]+=p[d]*W[(e*64+d)*64+k];
    for(int k=0;k<64;k++)y[q[e][i]*64+k]=o[k]>0?o[k]*pr[e][i]:0; } }
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
        self.gate = nn.Linear(64, 8, bias=False)
        self.w = nn.Parameter(torch.empty(8, 64, 64))

    def forward(self, x):
        x = x.contiguous()
        y = torch.empty_like(x)
        lib.moe(P(x), P(self.gate.weight), P(self.w), P(y), x.shape[0])
        return y
