"""bias + tanh-GELU + gate + residual in one pass; arguments travel in a ctypes.Structure."""
import ctypes, functools, hashlib, os, subprocess, tempfile
import torch
import torch.nn as nn

SRC = r"""
#include <math.h>
#include <stdint.h>
#include <string.h>
typedef struct { const float *x, *res, *bias, *gate; float *out; int64_t rows, dim; } job_t;
static inline float fexp(float x) {
    x = x < -104.f ? -104.f : x;  x = x > 89.f ? 89.f : x;
    float n = rintf(x * 1.44269504f);
    float r = fmaf(n, -0.693359375f, x);  r = fmaf(n, 2.12194440e-4f, r);
    float p = 1.9875691500e-4f;
    p = p*r + 1.3981999507e-3f; p = p*r + 8.3334519073e-3f; p = p*r + 4.1665795894e-2f;
    p = p*r + 1.6666665459e-1f; p = p*r + 5.0000001201e-1f; p = p*r*r + r + 1.f;
    int32_t k = (int32_t)n, h = k >> 1;
    union { uint32_t u; float f; } a, b;
    a.u = (uint32_t)(h + 127) << 23;  b.u = (uint32_t)(k - h + 127) << 23;
    return p * a.f * b.f;
}
void run(const job_t *j) {
    #pragma omp parallel for num_threads(2) schedule(static)
    for (int64_t r = 0; r < j->rows; ++r) {
        const float *x = j->x + r * j->dim, *s = j->res + r * j->dim;
        const float *b = j->bias, *g = j->gate;
        float *o = j->out + r * j->dim;
        #pragma omp simd
        for (int64_t c = 0; c < j->dim; ++c) {
            float v = x[c] + b[c];
            float u = 0.7978845608f * (v + 0.044715f * (v * v * v));
            float t = 1.f - 2.f / (fexp(2.f * u) + 1.f);
            o[c] = 0.5f * v * (1.f + t) * g[c] + s[c];
        }
    }
}
"""

class Job(ctypes.Structure):
    _fields_ = [(n, ctypes.c_void_p) for n in ("x", "res", "bias", "gate", "out")] + \
               [("rows", ctypes.c_int64), ("dim", ctypes.c_int64)]

@functools.lru_cache(maxsize=None)
def kernel():
    tag = hashlib.sha1(SRC.encode()).hexdigest()[:12]
    so = os.path.join(tempfile.gettempdir(), f"bgg_{os.getuid()}_{tag}.so")
    if not os.path.exists(so):
        d = tempfile.mkdtemp()
        c = os.path.join(d, "k.c")
        with open(c, "w") as f:
            f.write(SRC)
        subprocess.run(["gcc", "-O3", "-march=native", "-fopenmp", "-fno-math-errno", "-fno-trapping-math",
                        "-shared", "-fPIC", c, "-o", c + ".so", "-lm"], check=True)
        os.replace(c + ".so", so)
    fn = ctypes.CDLL(so).run
    fn.argtypes, fn.restype = [ctypes.POINTER(Job)], None
    return fn

def checked(fwd):
    @functools.wraps(fwd)
    def inner(self, x, res):
        if x.dtype != torch.float32 or res.dtype != torch.float32:
            raise TypeError("float32 only")
        if x.dim() != 2 or x.shape != res.shape or x.shape[1] != self.bias.numel():
            raise ValueError("expected two (rows, dim) tensors")
        return fwd(self, x.contiguous(), res.contiguous())
    return inner

class ModelNew(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.bias = nn.Parameter(torch.randn(dim) * 0.1)
        self.gate = nn.Parameter(torch.randn(dim))
        kernel()

    @checked
    def forward(self, x, res):
        out = torch.empty_like(x)
        b, g = self.bias.contiguous(), self.gate.contiguous()
        kernel()(Job(x.data_ptr(), res.data_ptr(), b.data_ptr(), g.data_ptr(), out.data_ptr(), *x.shape))
        return out
