"""KL(teacher || student) of temperature-softened logits, a row at a time with a scratch row from aligned_alloc."""
import ctypes, subprocess, tempfile
import torch
from torch import nn

PRELUDE = r"""
#include <cstring>
#include <cmath>
#include <cstdlib>
static inline float ex(float x) {
  x = x > 89.f ? 89.f : x; x = x < -105.f ? -105.f : x;
  float n = (x*1.44269504f + 12582912.f) - 12582912.f, r = x - n*0.693359375f; r += n*2.12194440e-4f;
  float p = 1.9875691500e-4f;
  p = p*r + 1.3981999507e-3f; p = p*r + 8.3334519073e-3f; p = p*r + 4.1665795894e-2f;
  p = p*r + 1.6666665459e-1f; p = p*r + 5.0000001201e-1f; p = p*r*r + r + 1.f;
  int k = (int)n, h = k >> 1, l = k - h, u = (h + 127) << 23, v = (l + 127) << 23;
  float a, b; memcpy(&a, &u, 4); memcpy(&b, &v, 4);
  return p*a*b;
}
"""
BODY = r"""
static float top(const float* r, long c) {
  float m = r[0];
  #pragma omp simd reduction(max:m)
  for (long j = 0; j < c; j++) m = r[j] > m ? r[j] : m;
  return m;
}
extern "C" int distil(const float* s, const float* t, long n, long c, float temp, float* out) {
  const float k = 1.f/temp; double total = 0; int bad = 0;
  #pragma omp parallel for reduction(+:total) reduction(|:bad) schedule(static)
  for (long i = 0; i < n; i++) {
    float* e = (float*)std::aligned_alloc(64, (c*4 + 63)/64*64);
    if (!e) { bad = 1; continue; }
    const float *a = s + i*c, *b = t + i*c; const float ma = top(a, c), mb = top(b, c);
    float sa = 0, sb = 0, kl = 0;
    #pragma omp simd reduction(+:sa,sb)
    for (long j = 0; j < c; j++) { e[j] = ex((b[j] - mb)*k); sb += e[j]; sa += ex((a[j] - ma)*k); }
    const float la = std::log(sa), lb = std::log(sb);
    #pragma omp simd reduction(+:kl)
    for (long j = 0; j < c; j++) kl += e[j]*(((b[j] - mb)*k - lb) - ((a[j] - ma)*k - la));
    total += kl/sb;
    std::free(e);
  }
  *out = (float)(total/n*temp*temp);
  return bad;
}
"""


def compile_and_bind(*parts):
    d = tempfile.mkdtemp(prefix="kl")
    with open(f"{d}/k.cpp", "w") as f:
        f.writelines(parts)
    subprocess.run(["g++", "-std=c++17", "-O3", "-march=native", "-mprefer-vector-width=512", "-fno-math-errno", "-fno-trapping-math",
                    "-fopenmp", "-shared", "-fPIC", f"{d}/k.cpp", "-o", f"{d}/k.so"], check=True)
    fn = ctypes.CDLL(f"{d}/k.so").distil
    fn.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_long, ctypes.c_long, ctypes.c_float, ctypes.c_void_p]

    def errcheck(rc, func, args):
        if rc:
            raise MemoryError("distil")
        return rc

    fn.errcheck = errcheck
    return fn


class ModelNew(nn.Module):
    fn = staticmethod(compile_and_bind(PRELUDE, BODY))

    def __init__(self, temperature):
        super().__init__()
        self.t = temperature

    def forward(self, student, teacher):
        assert self.t > 0, "positive temperatures only"
        assert student.dim() == 2 and student.shape == teacher.shape and student.numel() > 0
        assert student.dtype == teacher.dtype == torch.float32
        s, t = student.contiguous(), teacher.contiguous()
        out = torch.empty(())
        self.fn(s.data_ptr(), t.data_ptr(), *s.shape, self.t, out.data_ptr())
        return out
