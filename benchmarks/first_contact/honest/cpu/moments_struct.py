"""mean / var / absmax; the C side returns them as a struct of pointers filled in one fused pass plus one for the variance."""
import ctypes as ct
import subprocess
import tempfile
import typing as ty

import torch

Ptr = ct.c_void_p


class Out(ct.Structure):
    _fields_: ty.ClassVar = [("mean", Ptr), ("var", Ptr), ("peak", Ptr)]


C_SOURCE: ty.Final = r"""
typedef struct { float *mean, *var, *peak; } Out;
#include <math.h>
void moments(const float* x, long n, long c, Out out) {
  #pragma omp parallel for schedule(static)
  for (long r = 0; r < n; r++) {
    const float* p = x + r * c;
    double s0 = 0, s1 = 0, s2 = 0, s3 = 0, q = 0; float top = 0; int nan = 0; long i = 0;
    for (; i + 3 < c; i += 4) { s0 += p[i]; s1 += p[i + 1]; s2 += p[i + 2]; s3 += p[i + 3]; }
    for (; i < c; i++) s0 += p[i];
    for (i = 0; i < c; i++) { float a = fabsf(p[i]); nan |= a != a; top = a > top ? a : top; }
    const double m = (s0 + s1 + s2 + s3) / c;
    for (i = 0; i < c; i++) q += (p[i] - m) * (p[i] - m);
    out.mean[r] = m; out.var[r] = q / (c - 1); out.peak[r] = nan ? NAN : top;
  }
}
"""


def make() -> ty.Callable[..., None]:
    with tempfile.NamedTemporaryFile(suffix=".c", mode="w", delete=False) as f:
        f.write(C_SOURCE)
    so = f.name[:-2] + ".so"
    subprocess.run(("gcc", "-O3", "-march=x86-64-v3", "-fopenmp", "-fPIC", "-shared", f.name, "-o", so, "-lm"), check=True)
    fn = ct.CDLL(so).moments
    fn.argtypes, fn.restype = (Ptr, ct.c_long, ct.c_long, Out), None
    return fn


class ModelNew(torch.nn.Module):
    run = staticmethod(make())

    def forward(self, x: torch.Tensor) -> ty.Tuple[torch.Tensor, ...]:
        x = x if x.is_contiguous() else x.contiguous()
        n, c = x.shape
        mean, var, peak = results = tuple(x.new_empty(n) for _ in range(3))
        self.run(x.data_ptr(), n, c, Out(mean.data_ptr(), var.data_ptr(), peak.data_ptr()))
        return results
