import ctypes, os, subprocess, tempfile
import torch
import torch.nn as nn

# Recommender people's loop: prefetch the rows to come, keep 64 columns in registers (GCC vector extension).
SRC = r"""
#include <stdint.h>
#include <string.h>
typedef float v16 __attribute__((vector_size(64), aligned(4)));
int bags(const float* table, const int64_t* idx, const int64_t* off, const float* w, float* out,
         int64_t V, int64_t D, int64_t n, int64_t B) {
    if (B > 0 && off[0] != 0) return 2;
    for (int64_t b = 0; b < B; b++) {
        int64_t end = b + 1 < B ? off[b + 1] : n;
        if (off[b] > end || end > n) return 2;
    }
    int bad = 0;
    #pragma omp parallel for schedule(dynamic, 32) reduction(|: bad)
    for (int64_t b = 0; b < B; b++) {
        const int64_t lo = off[b], hi = b + 1 < B ? off[b + 1] : n;
        float* o = out + b * D;
        for (int64_t i = lo; i < hi; i++) if (idx[i] < 0 || idx[i] >= V) bad |= 1;
        if (bad) continue;
        int64_t c = 0;
        for (; c + 64 <= D; c += 64) {
            v16 t0 = {0}, t1 = {0}, t2 = {0}, t3 = {0};
            for (int64_t at = lo; at < hi; at += 64) {           // partial sums of 64 rows: long bags stay accurate
                const int64_t stop = at + 64 < hi ? at + 64 : hi;
                v16 a0 = {0}, a1 = {0}, a2 = {0}, a3 = {0};
                for (int64_t i = at; i < stop; i++) {
                    const v16* p = (const v16*)(table + idx[i] * D + c);
                    if (i + 4 < hi) __builtin_prefetch(table + idx[i + 4] * D + c);
                    a0 += w[i] * p[0]; a1 += w[i] * p[1]; a2 += w[i] * p[2]; a3 += w[i] * p[3];
                }
                t0 += a0; t1 += a1; t2 += a2; t3 += a3;
            }
            v16* q = (v16*)(o + c);
            q[0] = t0; q[1] = t1; q[2] = t2; q[3] = t3;
        }
        for (; c < D; c++) {
            double s = 0;
            for (int64_t i = lo; i < hi; i++) s += (double)w[i] * table[idx[i] * D + c];
            o[c] = (float)s;
        }
    }
    return bad;
}
"""
tmp = tempfile.mkdtemp()
with open(os.path.join(tmp, "bags.c"), "w") as f:
    f.write(SRC)
subprocess.check_call(["gcc", "-O3", "-march=native", "-fopenmp", "-shared", "-fPIC", "-Wno-psabi", tmp + "/bags.c", "-o", tmp + "/bags.so"])
bags = ctypes.CDLL(tmp + "/bags.so").bags
bags.argtypes = [ctypes.c_void_p] * 5 + [ctypes.c_int64] * 4


class ModelNew(nn.Module):
    def __init__(self, rows, dim):
        super().__init__()
        self.bag = nn.EmbeddingBag(rows, dim, mode="sum")

    def forward(self, idx, offsets, weights):
        table = self.bag.weight.detach().contiguous()
        assert table.dtype == weights.dtype == torch.float32 and idx.dtype == offsets.dtype == torch.int64
        assert idx.shape == weights.shape
        idx, offsets, weights = idx.contiguous(), offsets.contiguous(), weights.contiguous()
        out = table.new_empty(offsets.numel(), table.shape[1])
        err = bags(table.data_ptr(), idx.data_ptr(), offsets.data_ptr(), weights.data_ptr(), out.data_ptr(),
                   table.shape[0], table.shape[1], idx.numel(), offsets.numel())
        if err:
            raise IndexError("index or offset out of range (%d)" % err)
        return out
