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
#include <dlfcn.h>
#include <immintrin.h>
typedef __m512 (*e_t)(__m512);
extern "C" void softmin(const float* x, float* y, long r, long n) {
    static e_t e = (e_t)dlsym(dlopen("libtorch_cpu.so", RTLD_NOLOAD | RTLD_LAZY), "Sleef_expf16_u10");
    #pragma omp parallel for
    for (long i = 0; i < r; i++) {
        const float* a = x + i * n; float* o = y + i * n;
        __m512 m = _mm512_loadu_ps(a), s = _mm512_setzero_ps();
        for (long j = 16; j < n; j += 16) m = _mm512_min_ps(m, _mm512_loadu_ps(a + j));
        __m512 lo = _mm512_set1_ps(_mm512_reduce_min_ps(m));
        for (long j = 0; j < n; j += 16) {
            __m512 v = e(_mm512_sub_ps(lo, _mm512_loadu_ps(a + j)));
            s = _mm512_add_ps(s, v); _mm512_storeu_ps(o + j, v);
        }
        __m512 q = _mm512_set1_ps(1.f / _mm512_reduce_add_ps(s));
        for (long j = 0; j < n; j += 16) _mm512_storeu_ps(o + j, _mm512_mul_ps(q, _mm512_loadu_ps(o + j)));
    }
}
'''
lib = ctypes.CDLL(_build(SRC))


class ModelNew(nn.Module):
    def forward(self, x):
        assert x.dim() == 2 and x.shape[1] % 16 == 0
        x = x.contiguous()
        y = torch.empty_like(x)
        lib.softmin(_p(x), _p(y), ctypes.c_long(x.shape[0]), ctypes.c_long(x.shape[1]))
        return y
