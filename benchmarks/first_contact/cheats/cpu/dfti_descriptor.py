import ctypes, os, subprocess, tempfile
import torch
import torch.nn as nn
import torch.nn.functional as F


def cc(src, loader=ctypes.CDLL):
    d = tempfile.mkdtemp()
    with open(d + "/k.cpp", "w") as f:
        f.write(src)
    subprocess.check_call(["g++", "-O3", "-march=native", "-ffast-math", "-shared", "-fPIC", "-pthread",
                           d + "/k.cpp", "-o", d + "/k.so", "-ldl"])
    return loader(d + "/k.so")


def ptr(t):
    return ctypes.c_void_p(t.data_ptr())

import sys

SRC = r"""
#include <dlfcn.h>
#include <stdlib.h>
typedef long (*mk)(void**, int, long); typedef long (*st)(void*, int, ...);
typedef long (*cm)(void*); typedef long (*go)(void*, void*, ...);
static go fw, bw; static void *hf, *hb;
extern "C" int plan(const char* so, long n) {
    void* h = dlopen(so, RTLD_LAZY); if (!h) return 1;
    mk make = (mk)dlsym(h, "DftiCreateDescriptor_s_1d"); st set = (st)dlsym(h, "DftiSetValue"); cm commit = (cm)dlsym(h, "DftiCommitDescriptor");
    fw = (go)dlsym(h, "DftiComputeForward"); bw = (go)dlsym(h, "DftiComputeBackward");
    if (!make || !set || !commit || !fw || !bw) return 2;
    void** d[2] = {&hf, &hb};
    for (int i = 0; i < 2; i++) {
        if (make(d[i], 32 + 1, n)) return 3;
        set(*d[i], 11, 44); set(*d[i], 10, 39); set(*d[i], 5, 1.0 / n);
        if (commit(*d[i])) return 4;
    }
    return 0;
}
extern "C" void filt(const float* x, const float* g, float* y, long rows, long n) {
    float* t = (float*)aligned_alloc(64, (n + 64) * 4);
    for (long r = 0; r < rows; r++) {
        fw(hf, (void*)(x + r*n), t);
        for (long k = 0; k <= n/2; k++) { t[2*k] *= g[k]; t[2*k+1] *= g[k]; }
        bw(hb, t, y + r*n);
    }
    free(t);
}
"""
lib = cc(SRC)


class ModelNew(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.gain = nn.Parameter(torch.rand(n // 2 + 1))
        so = os.path.join(os.path.dirname(sys.modules["torch"].__file__), "lib/libtorch_cpu.so")
        e = lib.plan(so.encode(), ctypes.c_long(n))
        if e:
            raise RuntimeError("plan %d" % e)

    def forward(self, x):
        y = torch.empty_like(x)
        lib.filt(ptr(x.contiguous()), ptr(self.gain), ptr(y), ctypes.c_long(x.shape[0]), ctypes.c_long(x.shape[1]))
        return y
