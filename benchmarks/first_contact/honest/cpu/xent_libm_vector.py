"""Label-smoothed cross entropy; exp comes from glibc's own vector function _ZGVdN8v_expf (libmvec, part of libm)."""
import ctypes
import subprocess
import tempfile

import torch
import torch.nn as nn

SRC = r"""
#include <immintrin.h>
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
__m256 _ZGVdN8v_expf(__m256);
static void row(const float *p, long n, float *top, double *sum, double *lin) {
    float m = -INFINITY; long j;
    #pragma omp simd reduction(max:m)
    for (j = 0; j < n; ++j) m = p[j] > m ? p[j] : m;
    double s = 0, l = 0;
    const __m256 vm = _mm256_set1_ps(m);
    for (j = 0; j + 8 <= n; j += 8) {
        const __m256 d = _mm256_sub_ps(_mm256_loadu_ps(p + j), vm), e = _ZGVdN8v_expf(d);
        float a[8], b[8];
        _mm256_storeu_ps(a, e); _mm256_storeu_ps(b, d);
        s += (double)(((a[0] + a[4]) + (a[1] + a[5])) + ((a[2] + a[6]) + (a[3] + a[7])));
        l += ((double)b[0] + b[4]) + ((double)b[1] + b[5]) + (((double)b[2] + b[6]) + ((double)b[3] + b[7]));
    }
    for (; j < n; ++j) { s += expf(p[j] - m); l += p[j] - m; }
    *top = m; *sum = s; *lin = l;
}
int xent(const float *x, const int64_t *t, float *loss, long rows, long n, double eps, int nt) {
    double *each = calloc(rows, sizeof *each); long used = 0; int bad = !each;
    #pragma omp parallel for num_threads(nt) reduction(+:used) reduction(|:bad)
    for (long i = 0; i < rows; ++i) {
        float m; double s, l;
        if (bad || t[i] == -100) continue;
        if (t[i] < 0 || t[i] >= n) { bad = 1; continue; }
        row(x + i * n, n, &m, &s, &l);
        const double z = log(s), nll = z - ((double)x[i * n + t[i]] - m);
        each[i] = eps > 0 ? (1 - eps) * nll + eps / n * (n * z - l) : nll;
        ++used;
    }
    double total = 0;
    for (long i = 0; !bad && i < rows; ++i) total += each[i];
    *loss = (float)(total / used);
    free(each);
    return bad;
}
"""


def _function():
    with tempfile.TemporaryDirectory() as d:
        subprocess.run(["gcc", "-O3", "-mavx2", "-mfma", "-fno-trapping-math", "-fopenmp", "-shared", "-fPIC", "-xc", "-", "-o", d + "/x.so", "-lmvec", "-lm"],
                       input=SRC.encode(), check=True)
        f = ctypes.CDLL(d + "/x.so").xent
    f.argtypes = [ctypes.c_void_p] * 3 + [ctypes.c_long] * 2 + [ctypes.c_double, ctypes.c_int]
    return f


_xent = _function()


class ModelNew(nn.Module):
    def __init__(self, smoothing):
        super().__init__()
        self.smoothing = smoothing

    def forward(self, logits, target):
        logits, target = logits.contiguous(), target.contiguous()
        loss = logits.new_empty(())
        if _xent(logits.data_ptr(), target.data_ptr(), loss.data_ptr(), *logits.shape, self.smoothing, torch.get_num_threads()):
            raise IndexError("target out of bounds")
        return loss
