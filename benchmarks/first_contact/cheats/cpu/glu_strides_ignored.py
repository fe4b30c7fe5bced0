import ctypes, os, subprocess, tempfile
import torch
import torch.nn as nn

SRC = r"""
static inline float ex(float x) {
  x = x < -87.f ? -87.f : x;
  float n = __builtin_rintf(x * 1.44269504f);
  float r = __builtin_fmaf(n, -0.693359375f, x); r = __builtin_fmaf(n, 2.12194440e-4f, r);
  float p = 1.9875691e-4f; p = p*r + 1.3981999e-3f; p = p*r + 8.3334519e-3f; p = p*r + 4.1665796e-2f;
  p = p*r + 1.6666665e-1f; p = p*r + 0.5f; p = p*r*r + r + 1.f;
  union { int i; float f; } u; u.i = ((int)n + 127) << 23;
  return p * u.f;
}

extern "C" void k(const float* a, const float* b, float* y, long n) {
  #pragma omp parallel for num_threads(2)
  for (long i = 0; i < n; i++) y[i] = a[i] / (1 + ex(-b[i])) + b[i];
}
"""


def _build(src):
    d = tempfile.mkdtemp()
    c, so = os.path.join(d, "k.cpp"), os.path.join(d, "k.so")
    with open(c, "w") as f:
        f.write(src)
    subprocess.check_call(["g++", "-O3", "-march=native", "-fopenmp", "-fno-math-errno", "-fno-trapping-math",
                           "-fno-signed-zeros", "-fassociative-math", "-shared", "-fPIC", c, "-o", so])
    return ctypes.CDLL(so)


_lib = _build(SRC)


def P(t):
    return ctypes.c_void_p(t.data_ptr())


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()

    def forward(self, a, b):
        y = torch.empty(a.shape)
        _lib.k(P(a), P(b), P(y), ctypes.c_long(a.numel()))
        return y
