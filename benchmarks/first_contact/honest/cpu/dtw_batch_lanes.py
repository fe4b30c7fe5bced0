"""Dynamic time warping of a batch, one sequence pair per vector lane, costs never stored."""
import ctypes, os, subprocess, tempfile
import torch
import torch.nn as nn

LANES = 16
SRC = r"""
#include <math.h>
#include <stdlib.h>
#define V LANES
static inline float least(float a, float b) { return (a < b || a != a) ? a : b; }   /* NaN wins */
int dtw(const float* a, const float* b, float* out, long B, long n, long m) {
    float* mem = aligned_alloc(64, sizeof(float) * V * (n + m + n + 1 + 1));
    if (!mem) return 1;
    float (*A)[V] = (void*)mem, (*C)[V] = A + n, (*col)[V] = C + m, *corner = (float*)(col + n + 1);
    for (long g = 0; g < B; g += V) {
        for (long l = 0; l < V; ++l) {           /* the last group repeats its last pair in the idle lanes */
            const long r = g + l < B ? g + l : B - 1;
            for (long i = 0; i < n; ++i) A[i][l] = a[r * n + i];
            for (long j = 0; j < m; ++j) C[j][l] = b[r * m + j];
        }
        for (long i = 0; i <= n; ++i) for (int l = 0; l < V; ++l) col[i][l] = INFINITY;
        for (long j = 0; j < m; ++j) {
            for (int l = 0; l < V; ++l) { corner[l] = j ? INFINITY : 0.f; col[0][l] = INFINITY; }
            for (long i = 0; i < n; ++i) {
                #pragma omp simd
                for (int l = 0; l < V; ++l) {
                    const float left = col[i + 1][l], best = least(least(left, col[i][l]), corner[l]);
                    corner[l] = left;
                    col[i + 1][l] = fabsf(A[i][l] - C[j][l]) + best;
                }
            }
        }
        for (long l = 0; l < V && g + l < B; ++l) out[g + l] = col[n][l];
    }
    free(mem);
    return 0;
}
"""

class Dtw:
    def __init__(self, lanes):
        d = tempfile.mkdtemp()
        so = os.path.join(d, f"dtw{lanes}.so")
        subprocess.run(["gcc", "-O3", "-march=native", "-mprefer-vector-width=512", "-fopenmp-simd", "-fno-trapping-math",
                        f"-DLANES={lanes}", "-shared", "-fPIC", "-xc", "-", "-o", so], input=SRC, text=True, check=True)
        self.fn = ctypes.CDLL(so).dtw
        self.fn.argtypes = [ctypes.c_void_p] * 3 + [ctypes.c_long] * 3

    def __call__(self, a, b):
        out = torch.empty(a.shape[0])
        if self.fn(a.data_ptr(), b.data_ptr(), out.data_ptr(), a.shape[0], a.shape[1], b.shape[1]):
            raise MemoryError("no memory for the DTW columns")
        return out

_dtw = None

class ModelNew(nn.Module):
    def forward(self, a, b):
        global _dtw
        assert a.dtype == b.dtype == torch.float32 and a.dim() == b.dim() == 2, "two float32 matrices"
        assert a.shape[0] == b.shape[0] and min(a.shape) > 0 and min(b.shape) > 0, "same batch, nothing empty"
        if _dtw is None:
            _dtw = Dtw(LANES)
        return _dtw(a.contiguous(), b.contiguous())
