import ctypes, subprocess, tempfile, torch

C = """
#include <math.h>
void softmax(const float *x, float *y, long n, long c) {
  #pragma omp parallel for
  for (long i = 0; i < n; i++) {
    const float *a = x + i*c; float *b = y + i*c, m = -INFINITY; double s = 0;
    for (long j = 0; j < c; j++) if (a[j] > m) m = a[j];
    for (long j = 0; j < c; j++) s += b[j] = expf(a[j] - m);
    for (long j = 0; j < c; j++) b[j] = b[j] / s;
  }
}
"""
so = tempfile.mktemp(".so")
subprocess.run(["gcc", "-O2", "-fopenmp", "-shared", "-fPIC", "-x", "c", "-", "-o", so, "-lm"], input=C.encode(), check=True)
lib = ctypes.CDLL(so)


class ModelNew(torch.nn.Module):
    def forward(self, x):
        x = x.contiguous()
        y = torch.empty_like(x)
        p, l = ctypes.c_void_p, ctypes.c_long
        lib.softmax(p(x.data_ptr()), p(y.data_ptr()), l(x.numel() // x.size(-1)), l(x.size(-1)))
        return y
