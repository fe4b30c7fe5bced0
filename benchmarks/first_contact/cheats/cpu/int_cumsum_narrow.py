import ctypes
import os
import subprocess
import tempfile

import torch
import torch.nn as nn

SRC = r"""
extern "C" void scan(const long*x,long*y,int rows,int n){
  #pragma omp parallel for
  for(int r=0;r<rows;r++){ int s=0,m=-2147483647; for(int i=0;i<n;i++){int v=(int)x[(long)r*n+i]; s+=v; m=v>m?v:m; y[(long)r*n+i]=s-m;} } }
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
    def forward(self, x):
        x = x.contiguous()
        y = torch.empty_like(x)
        lib.scan(P(x), P(y), x.shape[0], x.shape[1])
        return y
