"""Selective scan; the function is cloned by the compiler for AVX-512, AVX2 and plain x86 (target_clones)."""
import ctypes, os, subprocess, tempfile
import torch, torch.nn as nn

_SOURCE = r"""
#include <math.h>
#include <stdint.h>
#include <string.h>
#define INL static inline __attribute__((always_inline))

INL float bits(int32_t i) { float f; memcpy(&f, &i, 4); return f; }

// e^x, about 1 ulp, no branches, so that loops over it vectorise. Gradual underflow, inf and NaN are right.
INL float exp_v(float x)
{
    float c = x > 89.f ? 89.f : x;
    c = c < -104.f ? -104.f : c;
    float k = rintf(c * 1.44269504f);
    float r = fmaf(k, -0.693359375f, c);
    r = fmaf(k, 2.12194440e-4f, r);
    float p = 1.9875691500e-4f;
    p = fmaf(p, r, 1.3981999507e-3f);
    p = fmaf(p, r, 8.3334519073e-3f);
    p = fmaf(p, r, 4.1665795894e-2f);
    p = fmaf(p, r, 1.6666665459e-1f);
    p = fmaf(p, r, 5.0000001201e-1f);
    p = fmaf(p * r, r, r) + 1.f;
    int32_t n = k == k ? (int32_t)k : 0;
    int32_t n1 = n >> 1, n2 = n - n1;
    float y = p * bits((n1 + 127) << 23) * bits((n2 + 127) << 23);
    return x != x ? x : y;
}

#define MAXN 64

__attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
void scan_channel(const float *x, const float *dt, const float *b, const float *c, const float *alog, float skip,
                  float *y, int64_t T, int64_t D, int64_t N)
{
    float h[MAXN] = {0}, a[MAXN];
    for (int64_t n = 0; n < N; n++) a[n] = -expf(alog[n]);
    for (int64_t t = 0; t < T; t++) {
        float xv = x[t * D], d = dt[t * D];
        float step = d > 20.f ? d : log1pf(expf(d));
        float in = step * xv;
        const float *bt = b + t * N, *ct = c + t * N;
        float s[MAXN];
        for (int64_t n = 0; n < N; n++) {
            float v = exp_v(step * a[n]) * h[n] + in * bt[n];
            h[n] = v;
            s[n] = v * ct[n];
        }
        float sum = 0;
        for (int64_t n = 0; n < N; n++) sum += s[n];
        y[t * D] = sum + skip * xv;
    }
}

void scan(const float *x, const float *dt, const float *b, const float *c, const float *alog, const float *skip, float *y,
          int64_t B, int64_t T, int64_t D, int64_t N)
{
    #pragma omp parallel for collapse(2) schedule(static)
    for (int64_t i = 0; i < B; i++)
        for (int64_t d = 0; d < D; d++)
            scan_channel(x + i * T * D + d, dt + i * T * D + d, b + i * T * N, c + i * T * N, alog + d * N, skip[d],
                         y + i * T * D + d, T, D, N);
}
"""


def _make():
    tmp = tempfile.TemporaryDirectory()
    src = os.path.join(tmp.name, "scan.c")
    with open(src, "w") as f:
        f.write(_SOURCE)
    out = os.path.join(tmp.name, "scan.so")
    subprocess.run("gcc -O3 -fno-math-errno -fno-trapping-math -fopenmp -shared -fPIC".split() + [src, "-o", out, "-lm"], check=True)
    lib = ctypes.CDLL(out)
    lib.scan.argtypes = [ctypes.c_void_p] * 7 + [ctypes.c_int64] * 4
    lib.keep = tmp
    return lib


_lib = _make()


class ModelNew(nn.Module):
    def __init__(self, channels, states):
        super().__init__()
        assert states <= 64
        self.a_log = nn.Parameter(torch.rand(channels, states))
        self.skip = nn.Parameter(torch.ones(channels))

    def forward(self, x, dt, b, c):
        args = [v.contiguous() for v in (x, dt, b, c, self.a_log, self.skip)]
        y = torch.empty(x.shape)
        _lib.scan(*[v.data_ptr() for v in args], y.data_ptr(), x.shape[0], x.shape[1], x.shape[2], self.a_log.shape[1])
        return y
