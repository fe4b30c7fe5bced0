"""bfloat16 layer norm with a unit self-check at import: rounding is compared with torch for hand-picked bit patterns."""
import ctypes
import subprocess
import tempfile

import torch
import torch.nn as nn

CODE = r"""
#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
// made by the compiler: how far the rounding constant moves for even and odd mantissas
constexpr std::array<uint32_t, 2> bump = [] { std::array<uint32_t, 2> t{}; for (uint32_t i = 0; i < 2; ++i) t[i] = 0x7fffu + i; return t; }();
static_assert(bump[0] == 0x7fff && bump[1] == 0x8000);
static inline float up(uint16_t h) { return std::bit_cast<float>((uint32_t)h << 16); }
static inline uint16_t down(float f) {
    const uint32_t u = std::bit_cast<uint32_t>(f);
    const uint32_t r = (u + bump[0] + ((u >> 16) & 1)) >> 16;
    return f != f ? 0x7fc0 : r;
}
extern "C" void round_all(const float *x, uint16_t *y, long n) { for (long i = 0; i < n; ++i) y[i] = down(x[i]); }
extern "C" void layer_norm(const uint16_t *x, const uint16_t *w, const uint16_t *b, uint16_t *y, long rows, long n, double eps, int nt) {
    #pragma omp parallel for num_threads(nt)
    for (long i = 0; i < rows; ++i) {
        const uint16_t *p = x + i * n; uint16_t *q = y + i * n;
        double s = 0, v = 0;
        #pragma omp simd reduction(+:s)
        for (long j = 0; j < n; ++j) s += up(p[j]);
        const double mean = s / n;
        #pragma omp simd reduction(+:v)
        for (long j = 0; j < n; ++j) { const double d = up(p[j]) - mean; v += d * d; }
        const float inv = (float)(1 / std::sqrt(v / n + eps)), mu = (float)mean;
        #pragma omp simd
        for (long j = 0; j < n; ++j) q[j] = down((up(p[j]) - mu) * inv * up(w[j]) + up(b[j]));
    }
}
"""


def _open():
    with tempfile.TemporaryDirectory() as d:
        subprocess.run(["g++", "-std=c++20", "-O3", "-mavx2", "-mfma", "-fno-trapping-math", "-fno-math-errno", "-fopenmp", "-shared",
                        "-fPIC", "-xc++", "-", "-o", d + "/ln.so"], input=CODE, text=True, check=True)
        lib = ctypes.CDLL(d + "/ln.so")
    lib.round_all.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_long]
    lib.layer_norm.argtypes = [ctypes.c_void_p] * 4 + [ctypes.c_long] * 2 + [ctypes.c_double, ctypes.c_int]
    return lib


def _self_check(lib):
    patterns = [0, 1, 0x7FFF, 0x8000, 0x8001, 0x18000, 0x3F808000, 0x3F818000, 0x7F7FFFFF, 0x7F800000, 0x7FC00000, 0x007FFFFF]
    patterns += [p - 2**31 for p in patterns]
    x = torch.tensor(patterns, dtype=torch.int32).view(torch.float32)
    y = torch.empty(len(x), dtype=torch.bfloat16)
    lib.round_all(x.data_ptr(), y.data_ptr(), len(x))
    want = x.to(torch.bfloat16)
    same = (y == want) | (y.isnan() & want.isnan())
    assert bool(same.all()), f"bfloat16 rounding differs: {x[~same].tolist()}"


_lib = _open()
_self_check(_lib)


class ModelNew(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.ln = nn.LayerNorm(width, dtype=torch.bfloat16)

    def forward(self, x):
        x = x.contiguous()
        y = torch.empty_like(x)
        n = x.shape[-1]
        _lib.layer_norm(x.data_ptr(), self.ln.weight.data_ptr(), self.ln.bias.data_ptr(), y.data_ptr(), x.numel() // n, n,
                        self.ln.eps, torch.get_num_threads())
        return y
