import ctypes, functools, hashlib, os, pathlib, subprocess, tempfile
import torch
import torch.nn as nn

CODE = r"""
#include <math.h>
#include <stdint.h>
typedef float f;
static inline void stats(const f* x, long N, long C, long S, long c, double* mean, double* m2) {
  double s = 0, q = 0;
  for (long n = 0; n < N; n++) { const f* p = x + (n*C + c)*S;
    #pragma omp simd reduction(+:s)
    for (long i = 0; i < S; i++) s += p[i]; }
  double m = s / (double)(N*S);
  for (long n = 0; n < N; n++) { const f* p = x + (n*C + c)*S;
    #pragma omp simd reduction(+:q)
    for (long i = 0; i < S; i++) { double d = p[i] - m; q += d*d; } }
  *mean = m; *m2 = q;
}
void bn_leaky(const f* x, const f* w, const f* b, f* rm, f* rv, long N, long C, long S,
              double eps, double mom, f slope, int train, f* y) {
  #pragma omp parallel for schedule(static)
  for (long c = 0; c < C; c++) {
    double mean = rm[c], var = rv[c];
    if (train) {
      double m2; stats(x, N, C, S, c, &mean, &m2);
      long cnt = N*S;
      var = m2 / (double)cnt;
      rm[c] = (f)((1 - mom)*rm[c] + mom*mean);
      rv[c] = (f)((1 - mom)*rv[c] + mom*(m2/(double)(cnt - 1)));
    }
    f m = (f)mean, k = (f)(w[c] / sqrt(var + eps)), o = b[c];
    for (long n = 0; n < N; n++) {
      const f* p = x + (n*C + c)*S; f* r = y + (n*C + c)*S;
      #pragma omp simd
      for (long i = 0; i < S; i++) { f v = (p[i] - m)*k + o; r[i] = v > 0 ? v : v*slope; }
    }
  }
}
"""


@functools.lru_cache(maxsize=None)
def library():
    tag = hashlib.sha1(CODE.encode()).hexdigest()[:16]
    so = pathlib.Path(tempfile.gettempdir()) / f"bnleaky-{os.getuid()}-{tag}.so"
    if not so.exists():
        tmp = so.with_suffix(f".{os.getpid()}.tmp")
        subprocess.run(["gcc", "-x", "c", "-O3", "-march=native", "-fopenmp", "-shared", "-fPIC", "-o", str(tmp), "-", "-lm"],
                       input=CODE.encode(), check=True)
        os.replace(tmp, so)
    fn = ctypes.CDLL(str(so)).bn_leaky
    p, l, d = ctypes.c_void_p, ctypes.c_long, ctypes.c_double
    fn.argtypes = [p, p, p, p, p, l, l, l, d, d, ctypes.c_float, ctypes.c_int, p]
    fn.restype = None
    return fn


class ModelNew(nn.Module):
    SLOPE = 0.1

    def __init__(self, channels):
        super().__init__()
        self.bn = nn.BatchNorm2d(channels, momentum=0.2)

    def forward(self, x):
        bn = self.bn
        assert x.dtype == torch.float32 and x.dim() == 4 and x.size(1) == bn.num_features
        x = x.contiguous()
        n, c, h, w = x.shape
        train = bn.training
        assert not train or n * h * w > 1
        state = [bn.weight, bn.bias, bn.running_mean, bn.running_var]
        assert all(t.is_contiguous() and t.dtype == torch.float32 for t in state)
        y = torch.empty_like(x)
        library()(x.data_ptr(), *(t.data_ptr() for t in state), n, c, h * w,
                  bn.eps, bn.momentum, self.SLOPE, int(train), y.data_ptr())
        if train:
            bn.num_batches_tracked.add_(1)
        return y
