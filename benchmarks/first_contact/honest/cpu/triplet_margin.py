"""Triplet margin loss (p = 2, eps = 1e-6), forward and backward in C++; distances are kept for the backward."""
import ctypes, subprocess, tempfile
import torch
from torch import nn
from torch.autograd import Function

SRC = r"""
#include <cmath>
namespace { constexpr float EPS = 1e-6f;
inline float dist(const float* a, const float* b, long d) {
  float s = 0;
  #pragma omp simd reduction(+:s)
  for (long j = 0; j < d; j++) { float e = a[j] - b[j] + EPS; s += e*e; }
  return std::sqrt(s);
} }
extern "C" double triplet(const float* a, const float* p, const float* n, float* dp, float* dn, long N, long D, float margin) {
  double sum = 0;
  #pragma omp parallel for reduction(+:sum) schedule(static)
  for (long i = 0; i < N; i++) {
    dp[i] = dist(a + i*D, p + i*D, D); dn[i] = dist(a + i*D, n + i*D, D);
    float v = margin + dp[i] - dn[i];
    sum += v < 0.f ? 0.f : v;
  }
  return sum / N;
}
extern "C" void triplet_grad(const float* a, const float* p, const float* n, const float* dp, const float* dn, float g, float margin,
                             long N, long D, float* ga, float* gp, float* gn) {
  #pragma omp parallel for schedule(static)
  for (long i = 0; i < N; i++) {
    const bool on = !(margin + dp[i] - dn[i] < 0.f);        // clamp_min passes the gradient on its border
    const float kp = on && dp[i] != 0.f ? g/(N*dp[i]) : 0.f, kn = on && dn[i] != 0.f ? g/(N*dn[i]) : 0.f;
    for (long j = i*D; j < (i + 1)*D; j++) {
      float u = on ? kp*(a[j] - p[j] + EPS) : 0.f, v = on ? kn*(a[j] - n[j] + EPS) : 0.f;
      ga[j] = u - v; gp[j] = -u; gn[j] = v;
    }
  }
}
"""
with tempfile.TemporaryDirectory() as _t:
    with open(_t + "/t.cpp", "w") as _f:
        _f.write(SRC)
    subprocess.run(["g++", "-O3", "-march=native", "-fopenmp", "-fno-math-errno", "-shared", "-fPIC", _t + "/t.cpp", "-o", _t + "/t.so"], check=True)
    _k = ctypes.CDLL(_t + "/t.so")
_P, _N, _F = ctypes.c_void_p, ctypes.c_long, ctypes.c_float
_k.triplet.argtypes, _k.triplet.restype = [_P] * 5 + [_N, _N, _F], ctypes.c_double
_k.triplet_grad.argtypes, _k.triplet_grad.restype = [_P] * 5 + [_F, _F, _N, _N] + [_P] * 3, None


class TripletLoss(Function):
    @staticmethod
    def forward(a, p, n, margin):
        a, p, n = a.contiguous(), p.contiguous(), n.contiguous()
        dp, dn = a.new_empty(len(a)), a.new_empty(len(a))
        mean = _k.triplet(*(t.data_ptr() for t in (a, p, n, dp, dn)), *a.shape, margin)
        return torch.tensor(mean, dtype=torch.float32), dp, dn

    @staticmethod
    def setup_context(ctx, inputs, output):
        a, p, n, ctx.margin = inputs
        _, dp, dn = output
        ctx.mark_non_differentiable(dp, dn)
        ctx.save_for_backward(a, p, n, dp, dn)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, g, _dp, _dn):
        a, p, n, dp, dn = (t.contiguous() for t in ctx.saved_tensors)
        grads = [torch.empty(a.shape) for _ in range(3)]
        _k.triplet_grad(*(t.data_ptr() for t in (a, p, n, dp, dn)), float(g), ctx.margin, *a.shape, *(t.data_ptr() for t in grads))
        return (*grads, None)


class ModelNew(nn.Module):
    def __init__(self, margin):
        super().__init__()
        self.margin = margin

    def forward(self, anchor, positive, negative):
        ts = (anchor, positive, negative)
        if any(t.dtype != torch.float32 or t.dim() != 2 or t.shape != anchor.shape for t in ts) or not anchor.numel():
            raise TypeError("three float32 matrices of one shape")
        return TripletLoss.apply(*ts, self.margin)[0]
