"""Weighted cross entropy with label smoothing.  One thread per half of the rows (std::thread), joined before return."""
import ctypes, hashlib, os, subprocess, tempfile
import torch
import torch.nn as nn


class Native:
    """Compile on construction, keep by the hash of the source."""
    _made = {}

    def __new__(cls, source, flags=("-O3", "-march=native", "-mprefer-vector-width=512", "-std=c++17", "-fopenmp-simd", "-fno-math-errno", "-fno-trapping-math", "-pthread")):
        key = hashlib.md5((source + " ".join(flags)).encode()).hexdigest()
        if key not in cls._made:
            folder = tempfile.mkdtemp(prefix="native_")
            src = os.path.join(folder, key + ".cpp")
            with open(src, "w") as fh:
                fh.write(source)
            subprocess.check_call(["g++", *flags, "-shared", "-fPIC", src, "-o", src[:-3] + "so"])
            cls._made[key] = ctypes.CDLL(src[:-3] + "so")
        return cls._made[key]



lib = Native(r"""
#include <cmath>
#include <cstring>
#include <cstdint>
#include <thread>
static inline float ex(float x) {   // x <= 0 or NaN
  x = x < -105.f ? -105.f : x;
  float n = (x*1.44269504f + 12582912.f) - 12582912.f;
  float r = x - n*0.693359375f; r += n*2.12194440e-4f;
  float p = 1.9875691500e-4f;
  p = p*r + 1.3981999507e-3f; p = p*r + 8.3334519073e-3f; p = p*r + 4.1665795894e-2f;
  p = p*r + 1.6666665459e-1f; p = p*r + 5.0000001201e-1f; p = p*r*r + r + 1.f;
  int k = (int)n, h = k >> 1, l = k - h; int u = (h + 127) << 23, v = (l + 127) << 23;
  float a, b; std::memcpy(&a, &u, 4); std::memcpy(&b, &v, 4);
  return p*a*b;
}
struct Part { double nll = 0, smooth = 0, w = 0; int bad = 0; };
static void rows(const float* x, const int64_t* t, const float* w, long lo, long hi, long c, bool sm, Part* out) {
  Part p; double wsum = 0;
  for (long j = 0; j < c; j++) wsum += w[j];
  for (long i = lo; i < hi; i++) {
    const float* r = x + i*c; const int64_t k = t[i];
    if (k == -1) continue;
    if (k < 0 || k >= c) { p.bad = 1; continue; }
    float m = r[0];
    #pragma omp simd reduction(max:m)
    for (long j = 0; j < c; j++) m = r[j] > m ? r[j] : m;
    float s = 0, q = 0;             // q = sum of w*(r - m), so sum of w*logp = q - lse*sum of w
    #pragma omp simd reduction(+:s,q)
    for (long j = 0; j < c; j++) { float d = r[j] - m; s += ex(d); q += w[j]*d; }
    float lse = std::log(s);
    p.nll -= (double)w[k]*((double)(r[k] - m) - lse); p.w += w[k];
    if (sm) p.smooth -= (double)q - (double)lse*wsum;
  }
  *out = p;
}
extern "C" int ce(const float* x, const int64_t* t, const float* w, long n, long c, double eps, float* out) {
  Part a, b; long h = n/2;
  std::thread other(rows, x, t, w, h, n, c, eps > 0, &b);
  rows(x, t, w, 0, h, c, eps > 0, &a);
  other.join();
  double W = a.w + b.w, nll = (a.nll + b.nll)/W, sm = (a.smooth + b.smooth)/W;
  *out = eps > 0 ? (float)((1 - eps)*nll + eps/c*sm) : (float)nll;
  return a.bad | b.bad;
}
""")
lib.ce.argtypes = [ctypes.c_void_p] * 3 + [ctypes.c_long] * 2 + [ctypes.c_double, ctypes.c_void_p]


class ModelNew(nn.Module):
    def __init__(self, classes, smooth):
        super().__init__()
        self.smooth = smooth
        self.register_buffer("class_weight", torch.linspace(0.5, 1.5, classes))

    def forward(self, logits, target):
        n, c = logits.shape
        if logits.dtype != torch.float32 or target.dtype != torch.int64 or target.shape != (n,) or self.class_weight.shape != (c,):
            raise TypeError("unsupported inputs")
        x, t, w = logits.contiguous(), target.contiguous(), self.class_weight.contiguous()
        out = torch.empty(())
        if lib.ce(x.data_ptr(), t.data_ptr(), w.data_ptr(), n, c, self.smooth, out.data_ptr()):
            raise IndexError("target out of bounds")
        return out
