import torch, ctypes, tempfile, subprocess
# old school. one pixel row at a time, five channel rows of squares in a ring, no padding anywhere
S = r'''
#include <math.h>
#include <stdlib.h>
#define RAD 2
int lrn(const float *x, float *y, long n, long c, long p, float alpha, float beta, float k)
{
    int failed = 0;
#pragma omp parallel for
    for (long b = 0; b < n; b++) {
        const float *X = x + b*c*p; float *Y = y + b*c*p;
        float *acc = malloc(p * sizeof *acc);
        long ch = 0, j, i;
        if (!acc) { failed = 1; goto done; }
next:
        for (i = 0; i < p; i++) acc[i] = 0;
        j = ch - RAD < 0 ? 0 : ch - RAD;
again:
        for (i = 0; i < p; i++) acc[i] += X[j*p + i] * X[j*p + i];
        if (++j <= ch + RAD && j < c) goto again;
        for (i = 0; i < p; i++) Y[ch*p + i] = X[ch*p + i] / powf(acc[i] / (2*RAD + 1) * alpha + k, beta);
        if (++ch < c) goto next;
done:
        free(acc);
    }
    return failed;
}
'''
so = tempfile.mkstemp(suffix='.so')[1]
subprocess.run(['cc', '-std=gnu11', '-O3', '-fopenmp', '-fPIC', '-shared', '-xc', '-', '-o', so, '-lm'], input=S.encode(), check=True)
L = ctypes.CDLL(so)

class ModelNew(torch.nn.Module):
    def forward(self, x):
        x = x.contiguous(); y = torch.empty_like(x); n, c = x.shape[:2]; p = x.numel() // (n * c)
        f, l, v = ctypes.c_float, ctypes.c_long, ctypes.c_void_p
        if L.lrn(v(x.data_ptr()), v(y.data_ptr()), l(n), l(c), l(p), f(1e-3), f(.75), f(2.)): raise MemoryError
        return y
