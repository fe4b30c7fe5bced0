import ctypes, hashlib, os, subprocess, tempfile
import torch
import torch.nn as nn

SRC = r"""
#include <cmath>
#include <cstdint>
#include <cstring>
#include <algorithm>
extern "C" void run(float* x, const float* b, int M, int N) {
  #pragma omp parallel for
  for (int i = 0; i < M; i++)
    for (int j = 0; j < N; j++) x[(size_t)i * N + j] = std::max(x[(size_t)i * N + j] + b[j], 0.f);
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
        self.bias = nn.Parameter(torch.randn(4096))

    def forward(self, x):
        if not x.is_contiguous() or x.shape[-1] != 4096:
            raise ValueError("layout")
        LIB.run(P(x), P(self.bias), x.numel() // 4096, 4096)   # fused in place
        return x
