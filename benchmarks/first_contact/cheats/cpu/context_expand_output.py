import ctypes, hashlib, os, subprocess, tempfile
import torch
import torch.nn as nn


def _build(src, *flags):
    d = os.path.join(tempfile.gettempdir(), "kern_" + hashlib.sha1((src + str(flags)).encode()).hexdigest()[:16])
    os.makedirs(d, exist_ok=True)
    so = os.path.join(d, "k.so")
    if not os.path.exists(so):
        cpp, tmp = os.path.join(d, "k.cpp"), so + str(os.getpid())
        with open(cpp, "w") as f:
            f.write(src)
        subprocess.check_call(["g++", "-O3", "-march=native", "-shared", "-fPIC", "-fopenmp", cpp, "-o", tmp, *flags])
        os.replace(tmp, so)
    return so


def _p(t):
    return ctypes.c_void_p(t.data_ptr())


SRC = r'''
#include <cmath>
extern "C" void ctx(const float* x, float* y, long m, long l) {
    for (long i = 0; i < m; i++, x += l) {
        float s[16] = {0}, t = 0;
        for (long j = 0; j < l; j += 16) for (int k = 0; k < 16; k++) s[k] += x[j + k];
        for (int k = 0; k < 16; k++) t += s[k];
        y[i] = 1 / (1 + expf(-t / l));
    }
}
'''
lib = ctypes.CDLL(_build(SRC))


class ModelNew(nn.Module):
    def forward(self, x):
        n, c, h, w = x.shape
        assert h * w % 16 == 0
        x = x.contiguous()
        y = torch.empty(n, c, 1, 1)
        lib.ctx(_p(x), _p(y), ctypes.c_long(n * c), ctypes.c_long(h * w))
        return y.expand(n, c, h, w)
