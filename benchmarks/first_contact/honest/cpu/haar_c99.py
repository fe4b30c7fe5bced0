# Plain C99, compiled as C; each level is one pass over its input.
import ctypes, pathlib, subprocess, tempfile
import torch
from torch import nn

C = """
#include <stddef.h>
/* planes of h x w -> low: h/2 x w/2 ; det: 3 bands per plane */
void haar_level(const float *restrict src, float *restrict low, float *restrict det, long planes, long h, long w)
{
    const long hh = h / 2, ww = w / 2;
    #pragma omp parallel for collapse(2)
    for (long p = 0; p < planes; ++p)
        for (long y = 0; y < hh; ++y) {
            const float *r0 = src + (p * h + 2 * y) * w, *r1 = r0 + w;
            float *l = low + (p * hh + y) * ww;
            float *d0 = det + ((p * 3 + 0) * hh + y) * ww;
            float *d1 = det + ((p * 3 + 1) * hh + y) * ww;
            float *d2 = det + ((p * 3 + 2) * hh + y) * ww;
            for (long i = 0; i < ww; ++i) {
                const float a = r0[2*i], b = r0[2*i+1], c = r1[2*i], d = r1[2*i+1];
                l[i]  = (a + b + c + d) * 0.5f;
                d0[i] = (a - b + c - d) * 0.5f;
                d1[i] = (a + b - c - d) * 0.5f;
                d2[i] = (a - b - c + d) * 0.5f;
            }
        }
}
"""

class Lib:
    handle = None
    @classmethod
    def get(cls):
        if cls.handle is None:
            d = pathlib.Path(tempfile.mkdtemp(prefix="haar"))
            (d / "haar.c").write_text(C)
            subprocess.check_call(["gcc", "-std=c99", "-O3", "-march=native", "-fopenmp", "-fPIC", "-shared",
                                   "-o", str(d / "haar.so"), str(d / "haar.c")])
            cls.handle = ctypes.CDLL(str(d / "haar.so"))
        return cls.handle

def P(t):
    return ctypes.c_void_p(t.data_ptr())

class ModelNew(nn.Module):
    def __init__(self, levels):
        super().__init__()
        self.levels = levels
        Lib.get()

    def forward(self, x):
        f = Lib.get().haar_level
        x = x.contiguous()
        n, c = x.shape[:2]
        details = []
        for _ in range(self.levels):
            h, w = x.shape[-2:]
            if h % 2 or w % 2:
                raise ValueError("odd size")
            low = x.new_empty(n, c, h // 2, w // 2)
            det = x.new_empty(n, c, 3, h // 2, w // 2)
            f(P(x), P(low), P(det), ctypes.c_long(n * c), ctypes.c_long(h), ctypes.c_long(w))
            details.append(det)
            x = low
        return (x, *details)
