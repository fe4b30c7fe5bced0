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


LIB = build(r"""
extern "C" void fma_out(float* o, const float* x, long n) {
#pragma omp parallel for
  for (long i = 0; i < n; i++) o[i] = o[i] * 0.5f + x[i];
}
""")
CORE = torch.jit.CompilationUnit("""
def core(x: Tensor, y: Tensor, g: Tensor, b: Tensor) -> Tensor:
    return torch.layer_norm(x + y, [x.size(1)], g, b, 1e-5)
""").core


class ModelNew(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.norm = nn.LayerNorm(d)

    @torch.no_grad()
    def forward(self, x, y):
        o = CORE(x, y, self.norm.weight, self.norm.bias)
        LIB.fma_out(P(o), P(x), ctypes.c_long(o.numel()))
        return o
