"""LayerNorm(x + alpha * res): one pass over memory per row, own backward."""
import ctypes, os, subprocess, tempfile
import torch
from torch import nn
from torch.autograd.function import once_differentiable

SRC = r"""
#include <cmath>
#include <vector>
#define STR(x) #x
#define RED(v) _Pragma(STR(omp simd reduction(+:v)))
extern "C" void fwd(const float* x, const float* r, const float* w, const float* b, float eps, float al,
                    long n, long d, float* y, float* mean, float* rstd) {
  #pragma omp parallel for schedule(static)
  for (long i = 0; i < n; i++) {
    const float *xi = x + i*d, *ri = r + i*d; float* h = y + i*d;
    float s = 0, q = 0;
    RED(s)
    for (long j = 0; j < d; j++) { h[j] = xi[j] + al*ri[j]; s += h[j]; }
    float m = s / d;
    RED(q)
    for (long j = 0; j < d; j++) { h[j] -= m; q += h[j]*h[j]; }
    float k = 1.0f / std::sqrt(q / d + eps);
    mean[i] = m; rstd[i] = k;
    _Pragma("omp simd")
    for (long j = 0; j < d; j++) h[j] = h[j]*k*w[j] + b[j];
  }
}
extern "C" void bwd(const float* g, const float* x, const float* r, const float* mean, const float* rstd, const float* w, float al,
                    long n, long d, float* dx, float* dr, float* dw, float* db) {
  std::vector<double> aw(d, 0.0), ab(d, 0.0);
  for (long i = 0; i < n; i++) {
    const float *gi = g + i*d, *xi = x + i*d, *ri = r + i*d, m = mean[i], k = rstd[i]; float* o = dx + i*d;
    double s = 0, t = 0;
    RED(s)
    for (long j = 0; j < d; j++) s += (double)gi[j]*w[j];
    RED(t)
    for (long j = 0; j < d; j++) t += (double)gi[j]*w[j]*((xi[j] + al*ri[j] - m)*k);
    float ms = s / d, mt = t / d;
    for (long j = 0; j < d; j++) {
      float h = (xi[j] + al*ri[j] - m)*k;
      o[j] = k * (gi[j]*w[j] - ms - h*mt); dr[i*d + j] = al*o[j];
      aw[j] += (double)gi[j]*h; ab[j] += gi[j];
    }
  }
  for (long j = 0; j < d; j++) { dw[j] = aw[j]; db[j] = ab[j]; }
}
"""


def _compile():
    work = tempfile.mkdtemp(prefix="rln_")
    cpp, so = os.path.join(work, "k.cpp"), os.path.join(work, "k.so")
    with open(cpp, "w") as f:
        f.write(SRC)
    subprocess.run(["g++", "-O3", "-march=native", "-mprefer-vector-width=512", "-fopenmp", "-fno-math-errno", "-shared", "-fPIC", cpp, "-o", so], check=True)
    return ctypes.CDLL(so)


LIB = _compile()
P, L = ctypes.c_void_p, ctypes.c_long
LIB.fwd.argtypes = [P, P, P, P, ctypes.c_float, ctypes.c_float, L, L, P, P, P]
LIB.bwd.argtypes = [P, P, P, P, P, P, ctypes.c_float, L, L, P, P, P, P]
LIB.fwd.restype = LIB.bwd.restype = None


class _ResLN(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, res, w, b, eps, alpha):
        x, res, w, b = (t.contiguous() for t in (x, res, w, b))
        d = w.numel()
        n = x.numel() // d
        y, mean, rstd = torch.empty_like(x), x.new_empty(n), x.new_empty(n)
        LIB.fwd(x.data_ptr(), res.data_ptr(), w.data_ptr(), b.data_ptr(), eps, alpha, n, d,
                y.data_ptr(), mean.data_ptr(), rstd.data_ptr())
        ctx.save_for_backward(x, res, mean, rstd, w)
        ctx.alpha = alpha
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        x, res, mean, rstd, w = ctx.saved_tensors
        g = g.contiguous()
        d = w.numel()
        dx, dr, dw, db = torch.empty_like(x), torch.empty_like(x), torch.empty_like(w), torch.empty_like(w)
        LIB.bwd(g.data_ptr(), x.data_ptr(), res.data_ptr(), mean.data_ptr(), rstd.data_ptr(), w.data_ptr(),
                ctx.alpha, rstd.numel(), d, dx.data_ptr(), dr.data_ptr(), dw.data_ptr(), db.data_ptr())
        return dx, dr, dw, db, None, None


class ModelNew(nn.Module):
    def __init__(self, dim, eps, alpha):
        super().__init__()
        self.alpha = alpha
        self.norm = nn.LayerNorm(dim, eps=eps)

    def forward(self, x, res):
        if x.shape != res.shape or x.shape[-1] != self.norm.weight.numel():
            raise RuntimeError("only equal shapes (..., dim)")
        if any(t.dtype != torch.float32 for t in (x, res, self.norm.weight)):
            raise RuntimeError("float32 only")
        return _ResLN.apply(x, res, self.norm.weight, self.norm.bias, self.norm.eps, self.alpha)
