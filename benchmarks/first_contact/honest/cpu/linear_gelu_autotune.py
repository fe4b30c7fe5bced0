import ctypes
import itertools
import logging
import os
import subprocess
import tempfile
import time

import torch
import torch.nn as nn

log = logging.getLogger("linear_gelu_autotune")

# Rows and columns of the register tile are filled in with an f-string: one library holds all variants.
VARIANTS = list(itertools.product((2, 4, 8), (16, 32)))


def variant(mr, nr):
    acc = "\n".join(f"        float c{i}[{nr}] = {{0}};" for i in range(mr))
    fma = "\n".join(
        f"            {{ const float a = x[(m + {i}) * K + k]; for (int j = 0; j < {nr}; ++j) c{i}[j] += a * row[j]; }}" for i in range(mr)
    )
    put = "\n".join(f"        store(c{i}, y + (m + {i}) * N + n, bias + n, {nr});" for i in range(mr))
    return f"""
static void tile_{mr}x{nr}(const float* __restrict x, const float* __restrict wt, const float* bias, float* __restrict y,
                           long m, long n, long N, long K) {{
{acc}
        for (long k = 0; k < K; ++k) {{
            const float* row = wt + k * N + n;
{fma}
        }}
{put}
}}
extern "C" void linear_gelu_{mr}x{nr}(const float* x, const float* wt, const float* bias, float* y, long M, long N, long K) {{
    #pragma omp parallel for schedule(static)
    for (long n = 0; n < N / {nr} * {nr}; n += {nr}) {{
        long m = 0;
        for (; m + {mr} <= M; m += {mr}) tile_{mr}x{nr}(x, wt, bias, y, m, n, N, K);
        for (; m < M; ++m) rest(x, wt, bias, y, m, n, n + {nr}, N, K);
    }}
    for (long m = 0; m < M; ++m) rest(x, wt, bias, y, m, N / {nr} * {nr}, N, N, K);
}}
"""


HEAD = r"""
#include <cmath>
static inline float gelu(float v) { return 0.5f * v * (1.0f + std::erf(v * 0.707106781186547524f)); }
static inline void store(const float* c, float* y, const float* bias, int n) {
    for (int j = 0; j < n; ++j) y[j] = gelu(c[j] + bias[j]);
}
static void rest(const float* x, const float* wt, const float* bias, float* y, long m, long n0, long n1, long N, long K) {
    for (long n = n0; n < n1; ++n) {
        float s = 0;
        for (long k = 0; k < K; ++k) s += x[m * K + k] * wt[k * N + n];
        y[m * N + n] = gelu(s + bias[n]);
    }
}
extern "C" void transpose(const float* w, float* wt, long N, long K) {
    for (long n = 0; n < N; ++n)
        for (long k = 0; k < K; ++k) wt[k * N + n] = w[n * K + k];
}
"""


class _Tuned:
    lib = None
    best = {}

    @classmethod
    def load(cls):
        if cls.lib is None:
            d = tempfile.mkdtemp(prefix="tuned_linear_")
            path = os.path.join(d, "lib.cpp")
            with open(path, "w") as f:
                f.write(HEAD + "".join(variant(m, n) for m, n in VARIANTS))
            t = time.perf_counter()
            subprocess.run(f"g++ -O3 -march=native -fopenmp -shared -fPIC {path} -o {d}/lib.so", shell=True, check=True)
            log.info("built %d variants in %.1f s", len(VARIANTS), time.perf_counter() - t)
            cls.lib = ctypes.CDLL(f"{d}/lib.so")
        return cls.lib

    @classmethod
    def pick(cls, shape, *args):
        """Time every variant on the caller's own shapes (the output is simply written again each time)."""
        if shape not in cls.best:
            times = {}
            for mr, nr in VARIANTS:
                f = getattr(cls.load(), f"linear_gelu_{mr}x{nr}")
                f(*args)
                t = time.perf_counter()
                for _ in range(3):
                    f(*args)
                times[mr, nr] = time.perf_counter() - t
            cls.best[shape] = min(times, key=times.get)
            log.info("%s: %s", shape, cls.best[shape])
        mr, nr = cls.best[shape]
        return getattr(cls.load(), f"linear_gelu_{mr}x{nr}")


class ModelNew(nn.Module):
    def __init__(self, in_features: int, out_features: int):
        super().__init__()
        self.linear = nn.Linear(in_features, out_features)
        self._wt = (None, None)

    def weight_t(self):
        w = self.linear.weight
        stamp = w._version, w.data_ptr()
        if self._wt[0] != stamp:
            wt = torch.empty(w.shape[1], w.shape[0])
            _Tuned.load().transpose(ctypes.c_void_p(w.data_ptr()), ctypes.c_void_p(wt.data_ptr()),
                                    ctypes.c_long(w.shape[0]), ctypes.c_long(w.shape[1]))
            self._wt = (stamp, wt)
        return self._wt[1]

    def forward(self, x):
        x = x.contiguous()
        n, k = self.linear.weight.shape
        m = x.numel() // k
        y = torch.empty(x.shape[:-1] + (n,))
        args = [ctypes.c_void_p(t.data_ptr()) for t in (x, self.weight_t(), self.linear.bias, y)] + [ctypes.c_long(v) for v in (m, n, k)]
        _Tuned.pick((m, n, k), *args)(*args)
        return y
