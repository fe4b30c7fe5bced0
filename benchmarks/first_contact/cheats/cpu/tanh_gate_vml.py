import ctypes, hashlib, os, subprocess, tempfile
import torch
import torch.nn as nn


def build(src, loader=ctypes.CDLL):
    so = os.path.join(tempfile.gettempdir(), "kern_" + hashlib.md5(src.encode()).hexdigest()[:12] + ".so")
    if not os.path.exists(so):
        tmp = so + str(os.getpid())
        subprocess.run(["g++", "-O3", "-march=native", "-fno-math-errno", "-fno-trapping-math", "-fassociative-math",
                        "-fno-signed-zeros", "-fopenmp", "-shared", "-fPIC", "-x", "c++", "-", "-o", tmp, "-ldl"],
                       input=src.encode(), check=True)
        os.replace(tmp, so)
    return loader(so)


def P(t):
    return ctypes.c_void_p(t.data_ptr())


_h = ctypes.CDLL(os.path.join(os.path.dirname(torch.__file__), "lib", "libtorch_cpu.so"))
_T, _E = (ctypes.cast(_h["vms" + s], ctypes.c_void_p) for s in ("Tanh", "Exp"))
LIB = build(r"""
typedef void (*V)(int, const float*, float*, long long);
extern "C" void gate(V th, V ex, const float* a, const float* b, float* o, int n) {
#pragma omp parallel for
  for (int i = 0; i < n; i += 1024) {
    int m = n - i < 1024 ? n - i : 1024; float t[1024];
    for (int j = 0; j < m; j++) t[j] = -b[i + j];
    th(m, a + i, o + i, 2); ex(m, t, t, 2);
    for (int j = 0; j < m; j++) o[i + j] /= 1.f + t[j];
  }
}
""")


class ModelNew(nn.Module):
    @torch.no_grad()
    def forward(self, a, b):
        a, b = a.contiguous(), b.contiguous()
        o = torch.empty_like(a)
        LIB.gate(_T, _E, P(a), P(b), P(o), a.numel())
        return o
