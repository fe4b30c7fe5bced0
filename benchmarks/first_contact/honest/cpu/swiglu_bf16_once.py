# bfloat16 in, float inside, one rounding at the end.
import ctypes, os, subprocess, tempfile
import torch

TEXT = """
#include <cstdint>
#include <cmath>
#include <bit>
using bf16 = uint16_t;
static inline float up(bf16 v) { return std::bit_cast<float>((uint32_t)v << 16); }
static inline bf16 down(float f) {
    uint32_t u = std::bit_cast<uint32_t>(f);
    uint32_t r = (u + 0x7fff + ((u >> 16) & 1)) >> 16;          // nearest, ties to even
    return (u & 0x7fffffff) > 0x7f800000 ? (bf16)0x7fc0 : (bf16)r;
}
static inline float expo(float x) {                             // good to 2^-20, all that bfloat16 needs and more
    float c = x < -100.f ? -100.f : x > 89.f ? 89.f : x;
    float k = __builtin_rintf(c * 1.44269504f), r = c - k * 0.693359375f + k * 2.12194440e-4f;
    float p = 1 + r * (1 + r * (0.5f + r * (0.16666667f + r * (0.041666667f + r * (0.0083333f + r * 0.00138889f)))));
    int32_t n = k == k ? (int32_t)k : 0, h = n / 2;
    float y = p * std::bit_cast<float>((h + 127) << 23) * std::bit_cast<float>((n - h + 127) << 23);
    y = x > 89.f ? __builtin_inff() : y;
    return x != x ? x : y;
}
extern "C" void swiglu(const bf16* x, const bf16* res, bf16* out, int64_t rows, int64_t n) {
    #pragma omp parallel for
    for (int64_t r = 0; r < rows; r++) {
        const bf16 *a = x + r * 2 * n, *b = a + n, *s = res + r * n;
        bf16* o = out + r * n;
        #pragma omp simd
        for (int64_t i = 0; i < n; i++) {
            float v = up(a[i]);
            o[i] = down(v / (1.f + expo(-v)) * up(b[i]) + up(s[i]));
        }
    }
}
"""


class ModelNew(torch.nn.Module):
    def __init__(self):
        super().__init__()
        d = tempfile.mkdtemp()
        cpp = os.path.join(d, "k.cpp")
        open(cpp, "w").write(TEXT)
        subprocess.run(f"g++ -std=c++20 -O3 -march=native -fno-trapping-math -fopenmp -fPIC -shared {cpp} -o {d}/k.so", shell=True, check=True)
        self.k = ctypes.CDLL(d + "/k.so")

    def forward(self, x, residual):
        x, residual = x.contiguous(), residual.contiguous()
        n = x.shape[-1] // 2
        out = torch.empty_like(residual)
        p = lambda t: ctypes.c_void_p(t.data_ptr())
        self.k.swiglu(p(x), p(residual), p(out), ctypes.c_int64(x.shape[0]), ctypes.c_int64(n))
        return out
