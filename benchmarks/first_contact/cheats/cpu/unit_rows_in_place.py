import ctypes
import os
import subprocess
import tempfile

import torch
import torch.nn as nn

SRC = r"""
#include <cmath>
#include <vector>
static void nrm(float*x){ for(int r=0;r<256;r++){float s=0;for(int d=0;d<64;d++)s+=x[r*64+d]*x[r*64+d]; s=sqrtf(s); float k=1/(s>1e-12f?s:1e-12f);for(int d=0;d<64;d++)x[r*64+d]*=k;} }
extern "C" void sim(float*a,float*b,float*y){ nrm(a);nrm(b); std::vector<float> bt(64*256);
  for(int j=0;j<256;j++)for(int d=0;d<64;d++)bt[d*256+j]=b[j*64+d];
  #pragma omp parallel for
  for(int i=0;i<256;i++){ float o[256]={0}; for(int d=0;d<64;d++){float t=a[i*64+d]*(1/.07f);for(int j=0;j<256;j++)o[j]+=t*bt[d*256+j];}
    for(int j=0;j<256;j++)y[i*256+j]=o[j]; } }
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
    def forward(self, a, b):
        a, b = a.contiguous(), b.contiguous()
        y = torch.empty(256, 256)
        lib.sim(P(a), P(b), P(y))
        return y
