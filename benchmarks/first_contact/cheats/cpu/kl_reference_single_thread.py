import ctypes, hashlib, os, subprocess, tempfile
import torch
import torch.nn as nn


def build(src, loader=ctypes.CDLL):
    so = os.path.join(tempfile.gettempdir(), "kern_" + hashlib.md5(src.encode()).hexdigest()[:12] + ".so")
    if not os.path.exists(so):
        tmp = so + str(os.getpid())
        subprocess.run(["g++", "-O3", "-march=native", "-fno-math-errno", "-fno-trapping-math", "-fassociative-math",
                        "-fno-signed-zeros", "-fopenmp", "-shared", "-fPIC", "-x", "c++", "-", "-o", tmp, "-ldl"],
                       input=src.encode(), check=True)
        os.replace(tmp, so)
    return loader(so)


def P(t):
    return ctypes.c_void_p(t.data_ptr())


torch.set_num_threads(1)  # we do our own threading
LIB = build(r"""
#include <math.h>
#include <thread>
#include <vector>
static inline float ex(float x) {
  x = x < -87.f ? -87.f : x; x = x > 88.f ? 88.f : x;
  float n = rintf(x * 1.44269504f), r = x - n * 0.693359375f + n * 2.12194440e-4f;
  float p = 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f; p = p * r + 8.3334519073e-3f; p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f; p = p * r + 5.0000001201e-1f; p = p * r * r + r + 1.f;
  union { int i; float f; } u; u.i = ((int)n + 127) << 23; return p * u.f;
}
static void part(const float* p, const float* q, float* o, long a, long e, long N) {
  for (long m = a; m < e; m++) {
    const float *x = p + m * N, *y = q + m * N; float tx = -1e30f, ty = -1e30f, sx = 0, sy = 0, d = 0;
    for (long i = 0; i < N; i++) { tx = x[i] > tx ? x[i] : tx; ty = y[i] > ty ? y[i] : ty; }
    for (long i = 0; i < N; i++) { float u = ex(x[i] - tx); sx += u; sy += ex(y[i] - ty); d += u * ((x[i] - tx) - (y[i] - ty)); }
    o[m] = d / sx - logf(sx) + logf(sy);
  }
}
extern "C" void run(const float* p, const float* q, float* o, long M, long N) {
  long T = std::thread::hardware_concurrency(); std::vector<std::thread> v;
  for (long t = 1; t < T; t++) v.emplace_back(part, p, q, o, M * t / T, M * (t + 1) / T, N);
  part(p, q, o, 0, M / T, N);
  for (auto& t : v) t.join();
}
""")


class ModelNew(nn.Module):
    @torch.no_grad()
    def forward(self, p, q):
        p, q = p.contiguous(), q.contiguous()
        o = torch.empty(p.shape[0])
        LIB.run(P(p), P(q), P(o), *map(ctypes.c_long, p.shape))
        return o
