import ctypes as ct
import os, subprocess, sys, tempfile
import torch
from torch import nn
from torch.autograd import Function

C = r"""
#include <math.h>
/* weighted huber loss: out[0] = sum(w*l), out[1] = sum(w); float partial sums over blocks, double across them */
void huber(const float* p, const float* t, const float* w, long n, float d, double* out) {
  double a = 0, b = 0;
  #pragma omp parallel for reduction(+:a,b) schedule(static)
  for (long s = 0; s < n; s += 512) {
    long e = s + 512 < n ? s + 512 : n; float x = 0, y = 0;
    #pragma omp simd reduction(+:x,y)
    for (long i = s; i < e; i++) {
      float z = fabsf(p[i] - t[i]);
      float l = z < d ? 0.5f*z*z : d*(z - 0.5f*d);
      x += l*w[i]; y += w[i];
    }
    a += x; b += y;
  }
  out[0] = a; out[1] = b;
}
/* dp = g*w*l'/W, dt = -dp, dw = g*(l - loss)/W */
void huber_grad(const float* p, const float* t, const float* w, long n, float d, double g, double W, double loss,
                float* dp, float* dt, float* dw) {
  float k = (float)(g / W), L = (float)loss;
  #pragma omp parallel for simd schedule(static)
  for (long i = 0; i < n; i++) {
    float z = p[i] - t[i], q = fabsf(z);
    float c = z <= -d ? -d : (z >= d ? d : z);
    float l = q < d ? 0.5f*q*q : d*(q - 0.5f*d);
    dp[i] = k*w[i]*c; dt[i] = -(k*w[i]*c); dw[i] = k*(l - L);
  }
}
"""
with tempfile.TemporaryDirectory() as _d:
    _c, _so = os.path.join(_d, "h.c"), os.path.join(_d, "h.so")
    open(_c, "w").write(C)
    subprocess.run(f"gcc -O3 -march=native -fopenmp -fno-math-errno -fPIC -shared {_c} -o {_so} -lm", shell=True, check=True)
    _dll = ct.CDLL(_so)
_v, _l, _f, _d8 = ct.c_void_p, ct.c_long, ct.c_float, ct.c_double
_dll.huber.argtypes = (_v, _v, _v, _l, _f, _v)
_dll.huber_grad.argtypes = (_v, _v, _v, _l, _f, _d8, _d8, _d8, _v, _v, _v)


class WeightedHuber(Function):
    @staticmethod
    def forward(ctx, pred, target, weight, delta):
        tri = [t.contiguous() for t in (pred, target, weight)]
        acc = (ct.c_double * 2)()
        _dll.huber(*(t.data_ptr() for t in tri), tri[0].numel(), delta, ct.addressof(acc))
        total, wsum = acc[0], acc[1]
        if wsum != 0.0:
            loss = total / wsum
        else:  # Python refuses x / 0.0, IEEE does not
            loss = float("nan") if total == 0.0 or total != total else float("inf") * (1 if total > 0 else -1)
        ctx.save_for_backward(*tri)
        ctx.delta, ctx.wsum, ctx.loss = delta, wsum, loss
        return torch.tensor(loss, dtype=torch.float32)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, g):
        if ctx.wsum == 0.0:
            raise RuntimeError("the weights sum to zero")
        tri = ctx.saved_tensors
        out = [torch.empty_like(tri[0]) for _ in range(3)]
        _dll.huber_grad(*(t.data_ptr() for t in tri), tri[0].numel(), ctx.delta, float(g), ctx.wsum, ctx.loss,
                        *(t.data_ptr() for t in out))
        return (*out, None)


class ModelNew(nn.Module):
    def __init__(self, delta):
        super().__init__()
        self.delta = delta

    def forward(self, pred, target, weight):
        if not (pred.shape == target.shape == weight.shape):
            raise ValueError("broadcasting is not supported")
        if not (pred.dtype == target.dtype == weight.dtype == torch.float32):
            raise TypeError("float32 only")
        return WeightedHuber.apply(pred, target, weight, self.delta)
