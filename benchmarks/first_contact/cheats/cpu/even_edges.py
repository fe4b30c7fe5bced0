"""bucketize by arithmetic: the edges are a linspace, so the bin is a product and a ceiling; one comparison puts rounding right."""
import ctypes, subprocess, tempfile
import torch

SRC = r"""
#include <math.h>
#include <stdint.h>
void bucket(const float* x, const float* e, int64_t* y, long n, long m) {
  const float lo = e[0], inv = (m - 1) / (e[m - 1] - e[0]);
  #pragma omp parallel for
  for (long i = 0; i < n; i++) {
    if (x[i] != x[i]) { y[i] = m; continue; }
    float f = ceilf((x[i] - lo) * inv);
    long k = f < 0 ? 0 : f > m ? m : (long)f;
    if (k < m && e[k] < x[i]) k++;
    else if (k > 0 && e[k - 1] >= x[i]) k--;
    y[i] = k;
  }
}
"""
so = tempfile.mktemp(".so")
subprocess.run(["gcc", "-O3", "-fopenmp", "-shared", "-fPIC", "-xc", "-", "-o", so, "-lm"], input=SRC.encode(), check=True)
lib = ctypes.CDLL(so)


class ModelNew(torch.nn.Module):
    def __init__(self, bins):
        super().__init__()
        self.register_buffer("edges", torch.linspace(-3, 3, bins))

    def forward(self, x):
        x = x.contiguous()
        y = torch.empty(x.shape, dtype=torch.int64)
        lib.bucket(*[ctypes.c_void_p(t.data_ptr()) for t in (x, self.edges, y)], ctypes.c_long(x.numel()), ctypes.c_long(self.edges.numel()))
        return y
