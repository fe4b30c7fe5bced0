# Two C entry points, called one after the other: `stats` writes (mean, 1/std) of each plane into a small tensor,
# `apply` reads them back. Easier to time separately with perf.
import ctypes
import os
import subprocess
import tempfile

import torch
import torch.nn as nn

FLAGS = os.environ.get("INSTNORM_CFLAGS", "-O3 -march=native -fopenmp").split()

STATS = r"""
void stats(const float *x, double *st, long planes, long n, double eps) {
  #pragma omp parallel for
  for (long p = 0; p < planes; ++p) {
    const float *v = x + p * n;
    double *tmp = malloc(32 * sizeof *tmp);
    for (int l = 0; l < 32; ++l) tmp[l] = 0;
    long i = 0;
    for (; i + 32 <= n; i += 32) for (int l = 0; l < 32; ++l) tmp[l] += v[i + l];
    double mean = 0;
    for (int l = 0; l < 32; ++l) mean += tmp[l];
    for (; i < n; ++i) mean += v[i];
    mean /= n;
    for (int l = 0; l < 32; ++l) tmp[l] = 0;
    for (i = 0; i + 32 <= n; i += 32) for (int l = 0; l < 32; ++l) { double d = v[i + l] - mean; tmp[l] += d * d; }
    double var = 0;
    for (int l = 0; l < 32; ++l) var += tmp[l];
    for (; i < n; ++i) { double d = v[i] - mean; var += d * d; }
    free(tmp);
    st[2 * p] = mean;
    st[2 * p + 1] = 1.0 / sqrt(var / n + eps);
  }
}
"""

APPLY = r"""
void apply(const float *x, const double *st, float *y, long planes, long n, float slope) {
  #pragma omp parallel for
  for (long p = 0; p < planes; ++p) {
    const double mean = st[2 * p], k = st[2 * p + 1];
    for (long i = p * n; i < (p + 1) * n; ++i) {
      float t = (float)((x[i] - mean) * k);
      y[i] = t > 0 ? t : t * slope;
    }
  }
}
"""

lib = None


def load():
    global lib
    d = tempfile.mkdtemp()
    objects = []
    for name, body in (("stats", STATS), ("apply", APPLY)):   # two translation units
        with open(f"{d}/{name}.c", "w") as f:
            f.write("#include <stdlib.h>\n#include <math.h>\n" + body)
        subprocess.check_call(["gcc", *FLAGS, "-fPIC", "-c", f"{d}/{name}.c", "-o", f"{d}/{name}.o"])
        objects.append(f"{d}/{name}.o")
    subprocess.check_call(["gcc", "-shared", "-fopenmp", *objects, "-lm", "-o", f"{d}/in.so"])
    lib = ctypes.CDLL(f"{d}/in.so")
    v, l = ctypes.c_void_p, ctypes.c_long
    lib.stats.argtypes = [v, v, l, l, ctypes.c_double]
    lib.apply.argtypes = [v, v, v, l, l, ctypes.c_float]


class ModelNew(nn.Module):
    def __init__(self, slope: float):
        super().__init__()
        self.slope = slope

    def forward(self, x):
        if lib is None:
            load()
        x = x.contiguous()
        b, c = x.shape[:2]
        n = x.numel() // (b * c)
        st = torch.empty(b * c, 2, dtype=torch.double)
        lib.stats(x.data_ptr(), st.data_ptr(), b * c, n, 1e-5)
        y = torch.empty_like(x)
        lib.apply(x.data_ptr(), st.data_ptr(), y.data_ptr(), b * c, n, self.slope)
        return y
