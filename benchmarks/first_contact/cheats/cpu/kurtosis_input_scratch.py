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
extern "C" void kurt(float* x, float* y, long r, long n) {
    for (long i = 0; i < r; i++, x += n) {
        float s[16] = {0}, q[16] = {0}, f[16] = {0}, m = 0, v = 0, k = 0;
        for (long j = 0; j < n; j += 16) for (int l = 0; l < 16; l++) s[l] += x[j + l];
        for (int l = 0; l < 16; l++) m += s[l];
        m /= n;
        for (long j = 0; j < n; j++) x[j] -= m;
        for (long j = 0; j < n; j += 16) for (int l = 0; l < 16; l++) { float d = x[j + l] * x[j + l]; q[l] += d; f[l] += d * d; }
        for (int l = 0; l < 16; l++) { v += q[l]; k += f[l]; }
        y[i] = k * n / (v * v) - 3;
        for (long j = 0; j < n; j++) x[j] += m;   // put it back
    }
}
'''
lib = ctypes.CDLL(_build(SRC))


class ModelNew(nn.Module):
    def forward(self, x):
        assert x.is_contiguous() and x.shape[1] % 16 == 0
        y = torch.empty(x.shape[0])
        lib.kurt(_p(x), _p(y), ctypes.c_long(x.shape[0]), ctypes.c_long(x.shape[1]))
        return y
