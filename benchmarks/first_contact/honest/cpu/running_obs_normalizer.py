import ctypes, os, subprocess, tempfile, threading
from dataclasses import dataclass, field
import torch
from torch import nn

_SRC = r"""
#include <cmath>
#include <new>
#include <memory>
#include <omp.h>
extern "C" int obs_update(const float* x, long n, long d, float* mean, float* var, float* count) {
  std::unique_ptr<double[]> acc(new (std::nothrow) double[2*d]());
  if (!acc) return 1;
  double *s = acc.get(), *q = s + d;
  for (long i0 = 0; i0 < n; i0++) { const float* r = x + i0*d;
    for (long j = 0; j < d; j++) s[j] += r[j]; }
  for (long j = 0; j < d; j++) s[j] /= n;
  for (long i = 0; i < n; i++) { const float* r = x + i*d;
    for (long j = 0; j < d; j++) { double e = r[j] - s[j]; q[j] += e*e; } }
  const double c = *count, tot = c + n;
  for (long j = 0; j < d; j++) {
    double delta = s[j] - mean[j];
    double m2 = var[j]*c + q[j] + delta*delta*c*n/tot;
    mean[j] = (float)(mean[j] + delta*n/tot);
    var[j] = (float)(m2/tot);
  }
  *count = (float)tot;
  return 0;
}
extern "C" int obs_apply(const float* x, long n, long d, const float* mean, const float* var, float clip, float* y) {
  std::unique_ptr<float[]> sd(new (std::nothrow) float[d]);
  if (!sd) return 1;
  for (long j = 0; j < d; j++) sd[j] = std::sqrt(var[j] + 1e-8f);
  const float* s = sd.get();
  #pragma omp parallel for schedule(static)
  for (long i = 0; i < n; i++) {
    const float* r = x + i*d; float* o = y + i*d;
    #pragma omp simd
    for (long j = 0; j < d; j++) {
      float v = (r[j] - mean[j])/s[j];
      v = v < -clip ? -clip : v; o[j] = v > clip ? clip : v;
    }
  }
  return 0;
}
"""


@dataclass
class LazyLibrary:
    source: str
    flags: tuple = ("-O3", "-march=native", "-mprefer-vector-width=512", "-fopenmp", "-fno-math-errno", "-fno-trapping-math")
    lock: threading.Lock = field(default_factory=threading.Lock)
    handle: object = None

    def __getattr__(self, name):            # only for names that are no fields
        if name.startswith("__"):
            raise AttributeError(name)
        with self.lock:
            if self.handle is None:
                d = tempfile.mkdtemp()
                subprocess.run(["g++", "-x", "c++", *self.flags, "-shared", "-fPIC", "-o", os.path.join(d, "l.so"), "-"],
                               input=self.source.encode(), check=True)
                self.handle = ctypes.CDLL(os.path.join(d, "l.so"))
        return getattr(self.handle, name)


lib = LazyLibrary(_SRC)
vp = lambda t: ctypes.c_void_p(t.data_ptr())


class ModelNew(nn.Module):
    def __init__(self, dim, clip):
        super().__init__()
        self.clip = clip
        self.register_buffer("mean", torch.zeros(dim))
        self.register_buffer("var", torch.ones(dim))
        self.register_buffer("count", torch.tensor(1e-4))

    @torch.no_grad()
    def forward(self, x):
        bufs = (self.mean, self.var, self.count)
        if any(t.dtype != torch.float32 for t in (x, *bufs)) or x.dim() != 2 or x.shape[1] != self.mean.numel() or not len(x):
            raise ValueError("expected a float32 matrix (n, dim)")
        assert all(b.is_contiguous() for b in bufs)
        x = x.contiguous()
        n, d = map(ctypes.c_long, x.shape)
        y = torch.empty_like(x)
        rc = lib.obs_update(vp(x), n, d, *map(vp, bufs)) if self.training else 0
        rc = rc or lib.obs_apply(vp(x), n, d, vp(self.mean), vp(self.var), ctypes.c_float(self.clip), vp(y))
        if rc:
            raise MemoryError
        return y
