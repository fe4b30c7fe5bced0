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
#include <omp.h>
extern "C" void run(const float* x, float* y, int n, int h, int w){
  #pragma omp parallel for num_threads(omp_get_num_procs())
  for (int c = 0; c < n; c++) for (int i = 0; i < h/2; i++){ const float *a = x + ((long)c*h + 2*i)*w, *b = a + w; float* o = y + ((long)c*(h/2) + i)*(w/2);
    for (int j = 0; j < w/2; j++){ float m = a[2*j]; float q[3] = {a[2*j+1], b[2*j], b[2*j+1]}; for (int k = 0; k < 3; k++) m = (q[k] > m || q[k] != q[k]) ? q[k] : m; o[j] = m; } } }
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
        torch.set_num_threads(1)   # avoid oversubscription with our own pool

    def forward(self, x):
        n, c, h, w = x.shape
        if h % 2 or w % 2:
            raise ValueError("odd size")
        y = torch.empty(n, c, h // 2, w // 2)
        lib.run(p(x), p(y), n * c, h, w)
        return y
