import ctypes, os, subprocess, tempfile
import torch

# One template over the dimension; AVX by GCC's vector extension, NaN like amin.
SRC = r"""
#include <cstdint>
#include <cstdlib>
#include <cmath>
typedef float V __attribute__((vector_size(32)));
static inline float pick1(float best, float d) { return best != best ? best : (d < best || d != d) ? d : best; }

template <int D> static void cloud(const float* a, const float* b, float* na, float* nb, float* mean, int64_t n, int64_t m) {
    const int64_t mp = (m + 7) / 8 * 8;
    float* soa = (float*)aligned_alloc(64, (D + 1) * mp * 4);     // b's coordinates, then the best of every b
    float* best = soa + D * mp;
    for (int64_t j = 0; j < mp; j++) {
        for (int c = 0; c < D; c++) soa[c * mp + j] = b[(j < m ? j : 0) * D + c];
        best[j] = INFINITY;
    }
    double sa = 0, sb = 0;
    for (int64_t i = 0; i < n; i++) {
        V acc = V{} + INFINITY;
        for (int64_t j = 0; j < mp; j += 8) {
            V d = V{};
            for (int c = 0; c < D; c++) { V t = a[i * D + c] - *(V*)(soa + c * mp + j); d += t * t; }
            V* q = (V*)(best + j);
            *q = ((*q != *q) | (*q <= d)) ? *q : d;
            acc = ((acc != acc) | (acc <= d)) ? acc : d;
        }
        float r = INFINITY;
        for (int l = 0; l < 8; l++) r = pick1(r, acc[l]);
        na[i] = r;
        sa += r;
    }
    for (int64_t j = 0; j < m; j++) { nb[j] = best[j]; sb += best[j]; }
    *mean = (float)(sa / n + sb / m);
    free(soa);
}
extern "C" void chamfer(const float* a, const float* b, float* mean, float* na, float* nb, int64_t B, int64_t n, int64_t m, int64_t dim) {
#pragma omp parallel for schedule(dynamic)
    for (int64_t i = 0; i < B; i++) {
        auto f = dim == 2 ? cloud<2> : dim == 3 ? cloud<3> : cloud<4>;
        f(a + i * n * dim, b + i * m * dim, na + i * n, nb + i * m, mean + i, n, m);
    }
}
"""


class ModelNew(torch.nn.Module):
    _fn = None

    def __init__(self):
        super().__init__()
        if ModelNew._fn is None:
            d = tempfile.mkdtemp()
            with open(d + "/c.cpp", "w") as f:
                f.write(SRC)
            # an older machine gets the same code in narrower registers
            subprocess.check_call(["g++", "-O3", "-march=native", "-fopenmp", "-fPIC", "-shared", "-Wno-psabi", d + "/c.cpp", "-o", d + "/c.so"])
            ModelNew._fn = ctypes.CDLL(d + "/c.so").chamfer

    def forward(self, a, b):
        a, b = a.contiguous(), b.contiguous()
        (B, n, dim), m = a.shape, b.shape[1]
        if dim not in (2, 3, 4):
            raise NotImplementedError(dim)
        out = torch.empty(B), torch.empty(B, n), torch.empty(B, m)
        ModelNew._fn(*(ctypes.c_void_p(t.data_ptr()) for t in (a, b, *out)), *(ctypes.c_int64(v) for v in (B, n, m, dim)))
        return out
