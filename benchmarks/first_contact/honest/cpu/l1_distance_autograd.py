"""L1 distances to learned prototypes with a backward of its own, both native."""
import ctypes, hashlib, os, pathlib, subprocess, tempfile
import torch
import torch.nn as nn
from torch.autograd.function import once_differentiable

CODE = r"""
#include <cmath>
#include <cstring>
extern "C" void l1_forward(const float* x, const float* p, float* out, long n, long m, long d) {
    #pragma omp parallel for num_threads(2)
    for (long i = 0; i < n; ++i) for (long j = 0; j < m; ++j) {
        const float *a = x + i * d, *b = p + j * d; float s = 0.f;
        #pragma omp simd reduction(+:s)
        for (long k = 0; k < d; ++k) s += fabsf(a[k] - b[k]);
        out[i * m + j] = s;
    }
}
static inline float sgn(float v) { return v > 0.f ? 1.f : v < 0.f ? -1.f : 0.f; }   // torch.sign of NaN is 0 on a CPU
extern "C" void l1_backward(const float* x, const float* p, const float* g, float* gx, float* gp, long n, long m, long d) {
    std::memset(gx, 0, sizeof(float) * n * d);
    std::memset(gp, 0, sizeof(float) * m * d);
    for (long i = 0; i < n; ++i) for (long j = 0; j < m; ++j) {
        const float *a = x + i * d, *b = p + j * d, w = g[i * m + j]; float *u = gx + i * d, *v = gp + j * d;
        #pragma omp simd
        for (long k = 0; k < d; ++k) { const float s = w * sgn(a[k] - b[k]); u[k] += s; v[k] -= s; }
    }
}
"""

def library():
    h = hashlib.blake2b(CODE.encode(), digest_size=8).hexdigest()
    home = pathlib.Path(tempfile.gettempdir()) / f"l1dist-{os.getuid()}"
    home.mkdir(mode=0o700, exist_ok=True)
    so = home / f"{h}.so"
    if not so.exists():
        part = home / f"{h}.{os.getpid()}.part"
        subprocess.run(["g++", "-O3", "-march=native", "-fopenmp", "-fno-trapping-math", "-shared", "-fPIC", "-xc++", "-", "-o", str(part)],
                       input=CODE.encode(), check=True)
        part.replace(so)
    lib = ctypes.CDLL(str(so))
    lib.l1_forward.argtypes = [ctypes.c_void_p] * 3 + [ctypes.c_long] * 3
    lib.l1_backward.argtypes = [ctypes.c_void_p] * 5 + [ctypes.c_long] * 3
    lib.l1_forward.restype = lib.l1_backward.restype = None
    return lib

LIB = library()

class L1(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, p):
        x, p = x.contiguous(), p.contiguous()
        ctx.save_for_backward(x, p)
        out = x.new_empty(x.shape[0], p.shape[0])
        LIB.l1_forward(x.data_ptr(), p.data_ptr(), out.data_ptr(), *out.shape, x.shape[1])
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        x, p = ctx.saved_tensors
        g, gx, gp = g.contiguous(), torch.empty_like(x), torch.empty_like(p)
        LIB.l1_backward(x.data_ptr(), p.data_ptr(), g.data_ptr(), gx.data_ptr(), gp.data_ptr(), *g.shape, x.shape[1])
        return gx, gp

class ModelNew(nn.Module):
    def __init__(self, n, d):
        super().__init__()
        self.proto = nn.Parameter(torch.randn(n, d))

    def forward(self, x):
        if x.dtype != torch.float32 or x.dim() != 2 or x.shape[1] != self.proto.shape[1]:
            raise ValueError("float32 (n, d) expected")
        return L1.apply(x, self.proto)
