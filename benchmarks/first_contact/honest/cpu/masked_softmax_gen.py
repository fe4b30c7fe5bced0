"""Masked softmax: a code generator writes one C++ function per (row length, scale)."""
import ctypes, functools, os, pathlib, string, subprocess, tempfile
import torch
from torch import nn

TEMPLATE = string.Template(r"""
#include <cmath>
#include <cstdint>
#include <cstring>
constexpr long N = $n;
static inline float ex(float x) {
    x = x < -104.f ? -104.f : x;  x = x > 89.f ? 89.f : x;
    float n = rintf(x * 1.44269504f), r = fmaf(n, -0.693359375f, x);
    r = fmaf(n, 2.12194440e-4f, r);
    float p = 1.9875691500e-4f;
    p = p*r + 1.3981999507e-3f; p = p*r + 8.3334519073e-3f; p = p*r + 4.1665795894e-2f;
    p = p*r + 1.6666665459e-1f; p = p*r + 5.0000001201e-1f; p = p*r*r + r + 1.f;
    int32_t k = (int32_t)n, h = k >> 1;
    union { uint32_t u; float f; } a{(uint32_t)(h + 127) << 23}, b{(uint32_t)(k - h + 127) << 23};
    return p * a.f * b.f;
}
extern "C" void $name(const float* x, const uint8_t* mask, float* out, long rows, float scale) {
    #pragma omp parallel for num_threads(2)
    for (long r = 0; r < rows; ++r) {
        const float* p = x + r * N; const uint8_t* q = mask + r * N; float* o = out + r * N;
        float m = -INFINITY, s = 0.f;
        #pragma omp simd reduction(max:m)
        for (long i = 0; i < N; ++i) {
            float v = q[i] ? p[i] * scale : -INFINITY;
            o[i] = v;
            m = v > m ? v : m;
        }
        #pragma omp simd reduction(+:s)
        for (long i = 0; i < N; ++i) { o[i] = ex(o[i] - m); s += o[i]; }
        const float inv = 1.f / s;
        #pragma omp simd
        for (long i = 0; i < N; ++i) o[i] *= inv;
    }
}
""")

@functools.lru_cache(maxsize=32)
def generate(n: int):
    name = f"masked_softmax_{n}"
    with tempfile.TemporaryDirectory(prefix="msg_") as d:
        src = pathlib.Path(d, name + ".cpp")
        src.write_text(TEMPLATE.substitute(n=n, name=name))
        lib = src.with_suffix(".so")
        subprocess.check_call([os.environ.get("CXX", "g++"), "-O3", "-march=native", "-fopenmp",
                               "-fno-math-errno", "-fno-trapping-math", "-shared", "-fPIC",
                               str(src), "-o", str(lib)])
        fn = getattr(ctypes.CDLL(str(lib)), name)      # stays mapped after the folder is gone
    fn.argtypes = [ctypes.c_void_p] * 3 + [ctypes.c_long, ctypes.c_float]
    fn.restype = None
    return fn

class ModelNew(nn.Module):
    def __init__(self, scale):
        super().__init__()
        self.scale = scale

    def forward(self, x, mask):
        assert x.dtype is torch.float32 and mask.dtype is torch.bool, "float32 scores and a bool mask"
        assert x.shape == mask.shape and x.dim() >= 1 and x.numel() > 0
        x, mask = x.contiguous(), mask.contiguous()
        n = x.shape[-1]
        out = torch.empty_like(x)
        generate(n)(x.data_ptr(), mask.data_ptr(), out.data_ptr(), x.numel() // n, self.scale)
        return out
