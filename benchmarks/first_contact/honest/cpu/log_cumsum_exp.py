import ctypes, subprocess, tempfile
import torch
from torch import nn

# state per column: the maximum so far and the sum of exp(x - maximum); both directions share the code
SRC = r"""
#include <string.h>
#include <math.h>
#include <stdlib.h>
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
static inline float lg(float v) {    /* v >= 1 or NaN, inf */
  int i; memcpy(&i, &v, 4);
  int e = (i - 0x3f2aaaab) >> 23; int mi = i - (e << 23); float m; memcpy(&m, &mi, 4);
  float f = m - 1.f, s = f*f, r = -0.130310059f, t = 0.140869141f;
  r = r*s - 0.121483512f; t = t*s + 0.139814854f; r = r*s - 0.166846126f; t = t*s + 0.200120345f;
  r = r*s - 0.249996200f; r = t*f + r; r = r*f + 0.333331972f; r = r*f - 0.5f; r = r*s + f;
  r = (float)e*0.693147182f + r;
  return v != v ? v : r;
}
static void scan(const float* x, float* y, float* m, float* s, long T, long D, long step) {
  for (long d = 0; d < D; d++) { m[d] = -INFINITY; s[d] = 0.f; }
  for (long t = 0; t < T; t++, x += step, y += step)
    for (long d = 0; d < D; d++) {
      float v = x[d], a = m[d], hi = v > a ? v : a, lo = v > a ? a : v;
      float e = lo == hi ? 1.f : ex(lo - hi);               /* equal: also both infinite */
      s[d] = v > a ? s[d]*e + 1.f : s[d] + e; m[d] = hi;
      y[d] = hi + lg(s[d]);
    }
}
int lcse(const float* x, float* f, float* b, long N, long T, long D) {
  int bad = 0;
  #pragma omp parallel
  {
    float* buf = malloc(2*D*sizeof(float));
    #pragma omp for reduction(|:bad)
    for (long n = 0; n < N; n++) {
      if (!buf) { bad = 1; continue; }
      const long o = n*T*D, last = o + (T - 1)*D;
      scan(x + o, f + o, buf, buf + D, T, D, D);
      scan(x + last, b + last, buf, buf + D, T, D, -D);
    }
    free(buf);
  }
  return bad;
}
"""

with tempfile.TemporaryDirectory() as tmp:
    subprocess.run(["gcc", "-xc", "-", "-O3", "-march=native", "-fno-math-errno", "-fno-trapping-math", "-fopenmp", "-shared", "-fPIC",
                    "-o", tmp + "/x.so", "-lm"], input=SRC.encode(), check=True)
    lcse = ctypes.CDLL(tmp + "/x.so").lcse


class ModelNew(nn.Module):
    def forward(self, x):
        if x.dtype != torch.float32 or x.dim() != 3 or x.numel() == 0:
            raise TypeError("float32 (batch, time, dim)")
        x = x.contiguous()
        f, b = torch.empty_like(x), torch.empty_like(x)
        rc = lcse(*(ctypes.c_void_p(t.data_ptr()) for t in (x, f, b)), *(ctypes.c_long(v) for v in x.shape))
        if rc != 0:
            raise MemoryError("no scratch")
        return f, b
