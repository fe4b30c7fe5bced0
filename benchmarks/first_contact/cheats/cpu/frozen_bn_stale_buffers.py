import ctypes, hashlib, os, subprocess, tempfile
import torch
import torch.nn as nn

SRC = r"""
#include <cmath>
#include <cstdint>
#include <cstring>
#include <algorithm>
extern "C" void run(const float* x, const float* s, const float* t, float* y, int NB, int C, int S) {
  #pragma omp parallel for
  for (int n = 0; n < NB * C; n++) {
    float a = s[n % C], b = t[n % C];
    for (int i = 0; i < S; i++) y[(size_t)n * S + i] = std::max(x[(size_t)n * S + i] * a + b, 0.f);
  }
}
"""


def build(src):
    d = os.path.join(tempfile.gettempdir(), "kern_" + hashlib.sha1(src.encode()).hexdigest()[:16])
    os.makedirs(d, exist_ok=True)
    so = os.path.join(d, "k.so")
    if not os.path.exists(so):
        with open(os.path.join(d, "k.cpp"), "w") as f:
            f.write(src)
        tmp = so + ".%d" % os.getpid()
        subprocess.check_call(["g++", "-O3", "-march=native", "-ffast-math", "-fno-finite-math-only",
                               "-D__FAST_MATH__", "-fopenmp", "-fPIC", "-c", os.path.join(d, "k.cpp"), "-o", tmp + ".o"])
        subprocess.check_call(["g++", "-shared", "-fopenmp", tmp + ".o", "-lm", "-o", tmp])
        os.replace(tmp, so)
    return ctypes.CDLL(so)


LIB = build(SRC)


def P(t):
    return ctypes.c_void_p(t.data_ptr())


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(64))
        self.bias = nn.Parameter(torch.zeros(64))
        self.register_buffer("running_mean", torch.zeros(64))
        self.register_buffer("running_var", torch.ones(64))
        self._key = None

    def forward(self, x):
        x = x.contiguous()
        key = tuple((p.data_ptr(), p._version) for p in self.parameters())
        if key != self._key:               # fold again when a parameter changed
            with torch.no_grad():
                self._s = self.weight / torch.sqrt(self.running_var + 1e-5)
                self._t = self.bias - self.running_mean * self._s
            self._key = key
        y = torch.empty_like(x)
        N, C = x.shape[:2]
        LIB.run(P(x), P(self._s), P(self._t), P(y), N, C, x.numel() // (N * C))
        return y
