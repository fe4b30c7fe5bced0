import ctypes, hashlib, os, subprocess, tempfile
import torch
import torch.nn as nn

SRC = r"""
extern "C" void rot(const float*q,const float*p,float*o,int n){
  #pragma omp parallel for
  for(int i=0;i<n;i++){ float w=q[4*i],a=q[4*i+1],b=q[4*i+2],c=q[4*i+3],x=p[3*i],y=p[3*i+1],z=p[3*i+2];
    float tx=2*(b*z-c*y),ty=2*(c*x-a*z),tz=2*(a*y-b*x);
    o[3*i]=x+w*tx+b*tz-c*ty; o[3*i+1]=y+w*ty+c*tx-a*tz; o[3*i+2]=z+w*tz+a*ty-b*tx; }
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
    def forward(self, q, p):
        q, p = q.contiguous(), p.contiguous()
        o = torch.empty_like(p)
        LIB.rot(P(q), P(p), P(o), p.shape[0])
        return o
