"""Cross entropy with label smoothing; kernels register themselves through a metaclass."""
import ctypes
import subprocess
import tempfile
from typing import ClassVar, NamedTuple

import torch
from torch import nn


class Signature(NamedTuple):
    symbol: str
    result: type
    arguments: tuple


class Registry(type):
    members: ClassVar[dict] = {}

    def __new__(mcs, name, bases, ns):
        cls = super().__new__(mcs, name, bases, ns)
        if "source" in ns:
            mcs.members[name] = cls
        return cls

    def __call__(cls, *args):
        fn = cls.__dict__.get("_fn")
        if fn is None:
            with tempfile.TemporaryDirectory() as d:
                with open(d + "/k.cpp", "w") as f:
                    f.write(cls.source)
                subprocess.run(["g++", "-O3", "-std=c++17", *cls.flags, "-shared", "-fPIC", d + "/k.cpp", "-o", d + "/k.so"], check=True)
                fn = getattr(ctypes.CDLL(d + "/k.so"), cls.signature.symbol)
            fn.restype, fn.argtypes = cls.signature.result, cls.signature.arguments
            cls._fn = fn
        return fn(*args)


class CrossEntropy(metaclass=Registry):
    flags = ("-mavx2", "-mfma", "-fopenmp", "-fno-math-errno", "-fno-trapping-math")
    signature = Signature("xent", ctypes.c_int, (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_long, ctypes.c_long,
                                                 ctypes.c_double, ctypes.c_int))
    source = r"""
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>
static inline float bits(int32_t i) { float f; memcpy(&f, &i, 4); return f; }
static inline int32_t bits(float f) { int32_t i; memcpy(&i, &f, 4); return i; }
static inline float ex(float x) {                     // x <= 0 or NaN
    x = x < -104.f ? -104.f : x;
    float t = x * 1.44269504f + 12582912.f, n = t - 12582912.f, r = (x - n * 0.693359375f) + n * 2.12194440e-4f;
    float p = 1.9875691500e-4f;
    p = p * r + 1.3981999507e-3f; p = p * r + 8.3334519073e-3f; p = p * r + 4.1665795894e-2f; p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f; p = p * r * r + r + 1.f;
    int32_t k = bits(t) - 0x4B400000, a = k >> 1;
    return p * bits((a + 127) << 23) * bits((k - a + 127) << 23);
}
extern "C" int xent(const float *x, const int64_t *target, float *loss, long rows, long n, double smooth, int nt) {
    int bad = 0;
    std::vector<double> each(rows, 0.0);
    long used = 0;
    #pragma omp parallel for num_threads(nt) reduction(+:used) reduction(|:bad)
    for (long i = 0; i < rows; ++i) {
        const int64_t t = target[i];
        if (t == -100) continue;
        if (t < 0 || t >= n) { bad |= 1; continue; }
        const float *p = x + i * n;
        float m = -INFINITY;
        #pragma omp simd reduction(max:m)
        for (long j = 0; j < n; ++j) m = p[j] > m ? p[j] : m;
        double s = 0, lin = 0;
        for (long j0 = 0; j0 < n; j0 += 200) {
            const long j1 = j0 + 200 < n ? j0 + 200 : n;
            float e = 0; double l = 0;
            #pragma omp simd reduction(+:e)
            for (long j = j0; j < j1; ++j) e += ex(p[j] - m);
            #pragma omp simd reduction(+:l)
            for (long j = j0; j < j1; ++j) l += (double)p[j] - m;
            s += e; lin += l;
        }
        const double lse = std::log(s);
        const double nll = lse - ((double)p[t] - m), smo = n * lse - lin;
        each[i] = smooth > 0 ? (1 - smooth) * nll + smooth / n * smo : nll;
        ++used;
    }
    double total = 0;
    for (double v : each) total += v;
    *loss = (float)(total / used);
    return bad;
}
"""


class ModelNew(nn.Module):
    def __init__(self, smoothing):
        super().__init__()
        self.smoothing = smoothing

    def forward(self, logits, target):
        kernel = Registry.members["CrossEntropy"]
        logits, target = logits.contiguous(), target.contiguous()
        loss = torch.empty(())
        if kernel(logits.data_ptr(), target.data_ptr(), loss.data_ptr(), logits.shape[0], logits.shape[1], self.smoothing,
                  torch.get_num_threads()):
            raise IndexError("Target out of bounds.")
        return loss
