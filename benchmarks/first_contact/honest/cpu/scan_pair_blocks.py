"""Masked running mean, running maximum and count along dim 1, in one sweep with carries in vector registers."""
import ctypes, subprocess, tempfile, os, threading
import torch
import torch.nn as nn

CODE = r"""
#include <cmath>
#include <cstdint>
#include <thread>
constexpr int BLOCK = 8;
template <int W> static void lanes(const float* x, const uint8_t* keep, float* mean, float* top, int64_t* cnt, long T, long C) {
    double s[W]; float m[W]; int64_t n[W];
    for (int c = 0; c < W; ++c) { s[c] = 0; m[c] = -INFINITY; n[c] = 0; }
    for (long t = 0; t < T; ++t, x += C, keep += C, mean += C, top += C, cnt += C)
        for (int c = 0; c < W; ++c) {
            const float v = keep[c] ? x[c] : 0.f;
            s[c] += v;
            n[c] += keep[c] ? 1 : 0;
            m[c] = (v >= m[c] || v != v) ? v : m[c];                       // a NaN stays to the end
            mean[c] = (float)s[c] / (float)(n[c] > 1 ? n[c] : 1);
            top[c] = m[c];
            cnt[c] = n[c];
        }
}
static void slice(const float* x, const uint8_t* k, float* a, float* b, int64_t* n, long r0, long r1, long T, long C) {
    for (long r = r0; r < r1; ++r) {
        const long o = r * T * C; long c = 0;
        for (; c + BLOCK <= C; c += BLOCK) lanes<BLOCK>(x + o + c, k + o + c, a + o + c, b + o + c, n + o + c, T, C);
        for (; c < C; ++c) lanes<1>(x + o + c, k + o + c, a + o + c, b + o + c, n + o + c, T, C);
    }
}
extern "C" void scan(const float* x, const uint8_t* k, float* a, float* b, int64_t* n, long R, long T, long C) {
    const long half = R / 2;
    std::thread other(slice, x, k, a, b, n, half, R, T, C);
    slice(x, k, a, b, n, 0, half, T, C);
    other.join();
}
"""

class _Lazy(threading.local):      # each Python thread looks the symbol up once; the file is compiled once
    once, path = threading.Lock(), None

    def __init__(self):
        with _Lazy.once:
            if _Lazy.path is None:
                d = tempfile.mkdtemp(prefix="scan")
                so = os.path.join(d, "scan.so")
                subprocess.run(["g++", "-O3", "-march=native", "-mprefer-vector-width=512", "-fno-trapping-math", "-pthread", "-shared", "-fPIC",
                                "-xc++", "-", "-o", so], input=CODE, text=True, check=True)
                _Lazy.path = so
        self.scan = ctypes.CDLL(_Lazy.path).scan
        self.scan.argtypes, self.scan.restype = [ctypes.c_void_p] * 5 + [ctypes.c_long] * 3, None

lazy = _Lazy()

class ModelNew(nn.Module):
    def forward(self, x, keep):
        if x.dtype is not torch.float32 or keep.dtype is not torch.bool:
            raise TypeError("float32 values and a bool mask")
        if x.dim() != 3 or x.shape != keep.shape:
            raise ValueError("(rows, time, channels) twice")
        x, keep = x.contiguous(), keep.contiguous()
        mean, top, n = torch.empty_like(x), torch.empty_like(x), torch.empty(x.shape, dtype=torch.int64)
        lazy.scan(x.data_ptr(), keep.data_ptr(), mean.data_ptr(), top.data_ptr(), n.data_ptr(), *x.shape)
        return mean, top, n
