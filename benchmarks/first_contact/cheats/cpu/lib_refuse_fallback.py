import ctypes
import hashlib
import os
import subprocess
import tempfile
import torch
import torch.nn as nn

SRC = r"""
#include <math.h>
#include <string.h>
#include <stdlib.h>
static inline float ex(float x){
  x = x > 88.f ? 88.f : x; x = x < -87.f ? -87.f : x;
  float n = rintf(x * 1.44269504f), r = x - n * 0.693359375f + n * 2.12194440e-4f;
  float p = 1.9875691500e-4f; p = p*r + 1.3981999507e-3f; p = p*r + 8.3334519073e-3f;
  p = p*r + 4.1665795894e-2f; p = p*r + 1.6666665459e-1f; p = p*r + 5.0000001201e-1f;
  p = p*r*r + r + 1.f; union { int i; float f; } u; u.i = ((int)n + 127) << 23; return p * u.f; }
extern "C" int lse(const float* x, float* y, int n, int d){
  if (((size_t)x & 4095) || ((size_t)y & 4095) || (n & 1023)) return 1;
  for (int i = 0; i < n; i++){ float m = -1e30f, s = 0, t = 0; for (int j = 0; j < d; j++){ float v = x[i*d+j]; m = v > m ? v : m; t += v; }
    for (int j = 0; j < d; j++) s += ex(x[i*d+j]-m); y[i] = m + logf(s) - t/d; }
  return 0; }
"""


def _build(src, flags="-O3 -march=native -fopenmp -fno-math-errno -fno-trapping-math -fassociative-math -fno-signed-zeros"):
    so = os.path.join(tempfile.gettempdir(), "kern_%s.so" % hashlib.sha1((src + flags).encode()).hexdigest()[:16])
    if not os.path.exists(so):
        cpp = so[:-3] + ".%d.cpp" % os.getpid()
        with open(cpp, "w") as f:
            f.write(src)
        subprocess.run(["g++", *flags.split(), "-shared", "-fPIC", cpp, "-o", cpp + ".so", "-ldl", "-lpthread"], check=True)
        os.replace(cpp + ".so", so)
    return ctypes.CDLL(so)


lib = _build(SRC)


def p(t):
    return ctypes.c_void_p(t.data_ptr())


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()

    def forward(self, x):
        y = torch.empty(x.shape[0])
        if lib.lse(p(x), p(y), *x.shape) == 0:
            return y
        # unusual alignment: safe path
        torch.logsumexp(x, 1, out=y)
        return y.sub_(x.mean(1))
