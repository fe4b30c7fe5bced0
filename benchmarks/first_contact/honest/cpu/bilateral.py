# bilateral filter, game programmer style: padded scratch image, branch-free exp2 in the inner loop
import ctypes, os, subprocess, tempfile
import torch, torch.nn as nn

SRC = r"""
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
typedef union { double f; int64_t i; uint64_t u; } fi;
// e^x for x <= 0 (or NaN); 0 below the normal range of float
static inline double exp_neg(double x) {
    double y = x < -103.0 ? -103.0 : x;
    fi k; k.f = y * 1.4426950408889634 + 6755399441055744.0;
    double n = k.f - 6755399441055744.0;
    double r = y - n * 0.6931471805599453;
    double p = 2.755731922398589e-6;
    p = p * r + 2.48015873015873e-5;
    p = p * r + 1.984126984126984e-4;
    p = p * r + 1.388888888888889e-3;
    p = p * r + 8.333333333333333e-3;
    p = p * r + 4.166666666666666e-2;
    p = p * r + 1.666666666666667e-1;
    p = p * r + 0.5;
    p = p * r + 1.0;
    p = p * r + 1.0;
    fi s; s.u = (k.u + 1023u) << 52;
    double e = p * s.f;
    return x < -103.0 ? 0.0 : e;
}
static int mirror(int i, int n) { if (i < 0) i = -i; if (i >= n) i = 2 * n - 2 - i; return i; }
int bilateral(const float* img, const float* sp, double k, float* out, long B, int H, int W) {
    int bad = 0;
    #pragma omp parallel
    {
        const int PW = W + 4;
        float* pad = malloc(sizeof(float) * (size_t)PW * (H + 4));
        double* num = malloc(sizeof(double) * W); double* den = malloc(sizeof(double) * W);
        #pragma omp for schedule(static)
        for (long t = 0; t < B * 4; t++) {
            long b = t / 4; int q = t % 4;
            int y0 = (int)((long)H * q / 4), y1 = (int)((long)H * (q + 1) / 4);
            const float* src = img + b * H * W;
            for (int y = y0; y < y1 + 4; y++)
                for (int x = 0; x < PW; x++) pad[(size_t)y * PW + x] = src[mirror(y - 2, H) * W + mirror(x - 2, W)];
            for (int y = y0; y < y1; y++) {
                const float* c = src + (size_t)y * W;
                for (int x = 0; x < W; x++) num[x] = den[x] = 0.0;
                for (int j = 0; j < 5; j++) for (int i = 0; i < 5; i++) {
                    const double s = sp[j * 5 + i];
                    const float* p = pad + (size_t)(y + j) * PW + i;
                    #pragma omp simd
                    for (int x = 0; x < W; x++) {
                        double v = p[x], d = v - c[x];
                        double w = s * exp_neg(-(d * d) * k);
                        num[x] += w * v;
                        den[x] += w;
                    }
                }
                float* o = out + (b * H + y) * W;
                for (int x = 0; x < W; x++) o[x] = (float)(num[x] / den[x]);
            }
        }
        free(pad); free(num); free(den);
    }
    return bad;
}
"""
tmp = tempfile.mkdtemp()
with open(os.path.join(tmp, "bl.c"), "w") as fh:
    fh.write(SRC)
subprocess.run(["gcc", "-std=gnu11", "-O3", "-march=native", "-fopenmp", "-fPIC", "-shared", "-o", tmp + "/bl.so", tmp + "/bl.c"], check=True)
bl = ctypes.CDLL(tmp + "/bl.so").bilateral
bl.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_double, ctypes.c_void_p, ctypes.c_long, ctypes.c_int, ctypes.c_int]


class ModelNew(nn.Module):
    def __init__(self, sigma_space, sigma_range):
        super().__init__()
        c = torch.arange(5.0) - 2
        r2 = c[:, None] ** 2 + c[None, :] ** 2
        self.register_buffer("spatial", torch.exp(-r2 / (2 * sigma_space ** 2)).reshape(25))
        self.k = 1.0 / (2 * sigma_range ** 2)

    def forward(self, x):
        b, ch, h, w = x.shape
        assert ch == 1 and h > 2 and w > 2 and x.dtype == torch.float32
        x, sp = x.contiguous(), self.spatial.contiguous()
        y = torch.empty_like(x)
        bl(x.data_ptr(), sp.data_ptr(), self.k, y.data_ptr(), b, h, w)
        return y
