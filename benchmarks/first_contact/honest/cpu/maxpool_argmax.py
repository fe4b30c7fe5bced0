import ctypes, os, subprocess, tempfile
import torch
import torch.nn as nn

C = r"""
#include <math.h>
#include <stdint.h>
/* The first of equal maxima; the last NaN of a window; an all -inf window gives its first element: as PyTorch does. */
void pool(const float *x, float *v, int64_t *ix, long planes, long h, long w, long oh, long ow, long k, long s, long p)
{
    #pragma omp parallel
    #pragma omp single
    for (long q = 0; q < planes; q++)
        #pragma omp task firstprivate(q)
        {
            const float *a = x + q * h * w;
            float best[ow]; int32_t at[ow];
            for (long i = 0; i < oh; i++) {
                long y0 = i * s - p < 0 ? 0 : i * s - p, y1 = i * s - p + k > h ? h : i * s - p + k;
                for (long j = 0; j < ow; j++) { best[j] = -INFINITY; at[j] = (int32_t)(y0 * w + (j * s - p < 0 ? 0 : j * s - p)); }
                for (long y = y0; y < y1; y++)
                    for (long d = 0; d < k; d++) {
                        long j0 = d >= p ? 0 : (p - d + s - 1) / s;
                        long j1 = (w - 1 + p - d) / s + 1;
                        if (j1 > ow) j1 = ow;
                        const float *row = a + y * w - p + d;
                        for (long j = j0; j < j1; j++) {
                            float t = row[j * s];
                            int take = (t > best[j]) | (t != t);
                            best[j] = take ? t : best[j];
                            at[j] = take ? (int32_t)(y * w - p + d + j * s) : at[j];
                        }
                    }
                for (long j = 0; j < ow; j++) { v[(q * oh + i) * ow + j] = best[j]; ix[(q * oh + i) * ow + j] = at[j]; }
            }
        }
}
"""


class ModelNew(nn.Module):
    def __init__(self, kernel, stride, padding):
        super().__init__()
        self.k, self.s, self.p = kernel, stride, padding
        tmp = tempfile.mkdtemp()
        with open(os.path.join(tmp, "pool.c"), "w") as f:
            f.write(C)
        subprocess.run(["gcc", "-O3", "-march=native", "-fopenmp", "-shared", "-fPIC", "pool.c", "-o", "pool.so"], cwd=tmp, check=True)
        self.pool = ctypes.CDLL(os.path.join(tmp, "pool.so")).pool
        self.pool.argtypes = [ctypes.c_void_p] * 3 + [ctypes.c_long] * 8

    def forward(self, x):
        x = x.contiguous()
        n, c, h, w = x.shape
        oh, ow = ((d + 2 * self.p - self.k) // self.s + 1 for d in (h, w))
        v = x.new_empty(n, c, oh, ow)
        ix = torch.empty(n, c, oh, ow, dtype=torch.int64)
        self.pool(x.data_ptr(), v.data_ptr(), ix.data_ptr(), n * c, h, w, oh, ow, self.k, self.s, self.p)
        return v, ix
