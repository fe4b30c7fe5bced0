import ctypes, os, subprocess, tempfile
import torch
import torch.nn as nn

# Eight systems at once in double lanes (transposed into scratch), the numerics port of `tridag`.
SRC = r"""
#include <math.h>
#include <stdlib.h>
#define L 8
void tridag(const float* a, const float* c, const float* e, const float* r, float* x, long B, long n) {
    #pragma omp parallel
    {
        double* buf = malloc(sizeof(double) * 2 * L * n);
        double *cp = buf, *dp = buf + L * n;
        #pragma omp for schedule(static)
        for (long g = 0; g < (B + L - 1) / L; g++) {
            long row[L];
            for (int l = 0; l < L; l++) row[l] = (g * L + l < B ? g * L + l : B - 1) * n;
            for (long i = 0; i < n; i++)
                for (int l = 0; l < L; l++) {
                    const long k = row[l] + i;
                    const double av = a[k], cv = c[k];
                    double den = 1 + fabs(av) + fabs(cv) + fabs((double)e[k]), num = r[k];
                    if (i) { den -= av * cp[(i - 1) * L + l]; num -= av * dp[(i - 1) * L + l]; }
                    cp[i * L + l] = cv / den;
                    dp[i * L + l] = num / den;
                }
            for (long i = n - 2; i >= 0; i--)
                for (int l = 0; l < L; l++) dp[i * L + l] -= cp[i * L + l] * dp[(i + 1) * L + l];
            for (int l = 0; l < L && g * L + l < B; l++)
                for (long i = 0; i < n; i++) x[row[l] + i] = (float)dp[i * L + l];
        }
        free(buf);
    }
}
"""
d = tempfile.mkdtemp()
with open(d + "/tri.c", "w") as f:
    f.write(SRC)
subprocess.check_call(["gcc", "-O3", "-march=native", "-fopenmp", "-shared", "-fPIC", d + "/tri.c", "-o", d + "/tri.so", "-lm"])
tri = ctypes.CDLL(d + "/tri.so").tridag
tri.argtypes = [ctypes.c_void_p] * 5 + [ctypes.c_long] * 2
tri.restype = None


class ModelNew(nn.Module):
    def forward(self, a, c, extra, rhs):
        assert all(t.dtype == torch.float32 and t.shape == a.shape for t in (a, c, extra, rhs))
        a, c, extra, rhs = a.contiguous(), c.contiguous(), extra.contiguous(), rhs.contiguous()
        x = torch.empty_like(a)
        tri(a.data_ptr(), c.data_ptr(), extra.data_ptr(), rhs.data_ptr(), x.data_ptr(), *a.shape)
        return x
