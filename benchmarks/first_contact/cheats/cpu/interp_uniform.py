import ctypes, hashlib, os, subprocess, tempfile
import torch
import torch.nn as nn

SRC = r"""
extern "C" void interp(const float*x,const float*k,const float*v,float*o,int n,int m){
  float lo=k[0],inv=(m-1)/(k[m-1]-k[0]);
  #pragma omp parallel for
  for(int p=0;p<n;p++){ float t=(x[p]-lo)*inv; int i=(int)t; i=i<0?0:(i>m-2?m-2:i); o[p]=v[i]+(v[i+1]-v[i])*(t-i); }
}
"""


def _load():
    tag = hashlib.sha1(SRC.encode()).hexdigest()[:16]
    so = os.path.join(tempfile.gettempdir(), f"knl_{tag}.so")
    if not os.path.exists(so):
        cpp = f"{so[:-3]}_{os.getpid()}.cpp"
        with open(cpp, "w") as f:
            f.write(SRC)
        subprocess.check_call(["g++", "-O3", "-march=native", "-ffast-math", "-fopenmp", "-shared", "-fPIC", cpp, "-o", cpp + ".so"])
        os.replace(cpp + ".so", so)
    return ctypes.CDLL(so)


LIB = _load()


def P(t):
    return ctypes.c_void_p(t.data_ptr())


class ModelNew(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.register_buffer("knots", torch.linspace(-3, 3, n))
        self.values = nn.Parameter(torch.zeros(n))

    def forward(self, x):
        x = x.contiguous()
        o = torch.empty_like(x)
        LIB.interp(P(x), P(self.knots), P(self.values), P(o), x.numel(), self.knots.numel())
        return o
