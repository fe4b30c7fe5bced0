import ctypes, hashlib, os, subprocess, tempfile
import torch
import torch.nn as nn

SRC = r"""
#include <cmath>
#include <cstdint>
#include <cstring>
#include <algorithm>
extern "C" void run(const float* x, float* y, long n) {
  #pragma omp parallel for
  for (long i = 0; i < n; i++) { float v = x[i]; y[i] = v * std::min(std::max(v + 3.f, 0.f), 6.f) * (1.f / 6) + 0.5f * v; }
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
    def forward(self, x):
        y = torch.empty(x.shape)
        LIB.run(P(x), P(y), ctypes.c_long(x.numel()))
        return y
