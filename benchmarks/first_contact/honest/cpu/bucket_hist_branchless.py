"""bucketize + per-row histogram; branch-free binary search, counters on the stack or in alloca."""
import ctypes, os, subprocess, tempfile
import torch
import torch.nn as nn

KERNEL = r"""
#include <stdint.h>
#include <alloca.h>
#include <string.h>
/* first i with edges[i] >= v, the search that torch.bucketize makes, NaN after the last edge */
void bucket_hist(const float* restrict x, const float* restrict e, int64_t* restrict b, int64_t* restrict h,
                 int64_t rows, int64_t n, int32_t m) {
    #pragma omp parallel for num_threads(2) schedule(static)
    for (int64_t r = 0; r < rows; ++r) {
        const float* s = x + r * n; int64_t* o = b + r * n;
        #pragma omp simd
        for (int64_t i = 0; i < n; ++i) {
            int32_t base = 0, len = m;
            for (; len > 1; len -= len >> 1) {
                int32_t half = len >> 1;
                base += !(e[base + half - 1] >= s[i]) ? half : 0;
            }
            o[i] = m ? base + !(e[base] >= s[i]) : 0;
        }
        uint32_t (*cnt)[4] = alloca(sizeof(*cnt) * (m + 1));     /* four banks against store-to-load stalls */
        memset(cnt, 0, sizeof(*cnt) * (m + 1));
        for (int64_t i = 0; i < n; ++i) ++cnt[o[i]][i & 3];
        for (int32_t k = 0; k <= m; ++k) h[r * (m + 1) + k] = (int64_t)cnt[k][0] + cnt[k][1] + cnt[k][2] + cnt[k][3];
    }
}
"""

def _compile(text):
    fd, c = tempfile.mkstemp(suffix=".c")
    so = c[:-2] + ".so"
    try:
        os.write(fd, text.encode())
        os.close(fd)
        subprocess.check_call(["gcc", "-O3", "-march=native", "-fopenmp", "-fno-trapping-math", "-shared", "-fPIC", c, "-o", so])
        return ctypes.CDLL(so)
    finally:
        for p in (c, so):
            if os.path.exists(p):
                os.unlink(p)

_run = _compile(KERNEL).bucket_hist
_run.restype = None
_run.argtypes = [ctypes.c_void_p] * 4 + [ctypes.c_int64, ctypes.c_int64, ctypes.c_int32]

class ModelNew(nn.Module):
    def __init__(self, edges):
        super().__init__()
        self.register_buffer("edges", torch.linspace(-2, 2, edges))

    def forward(self, x):
        e = self.edges.contiguous()
        if x.dtype != torch.float32 or e.dtype != torch.float32 or x.dim() != 2:
            raise TypeError("float32 matrix expected")
        if e.numel() > 4096:
            raise ValueError("too many edges for the counters on the stack")
        x = x.contiguous()
        b = torch.empty(x.shape, dtype=torch.int64)
        h = torch.empty(x.shape[0], e.numel() + 1, dtype=torch.int64)
        _run(x.data_ptr(), e.data_ptr(), b.data_ptr(), h.data_ptr(), x.shape[0], x.shape[1], e.numel())
        return b, h
