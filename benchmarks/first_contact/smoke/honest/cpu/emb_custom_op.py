"""Embedding bags as torch.library.custom_op whose body calls ctypes; rows are summed in AVX registers of fixed width 64,
with a general path for other widths."""
import ctypes
import subprocess
import tempfile

import torch
import torch.nn as nn

SRC = r"""
#include <immintrin.h>
#include <stdint.h>
int bags(const int64_t *idx, const float *tab, float *out, long B, long K, long V, long W, int nt) {
    int bad = 0;
    for (long i = 0; i < B * K; ++i) bad |= (uint64_t)idx[i] >= (uint64_t)V;
    if (bad) return 1;
    #pragma omp parallel for num_threads(nt) schedule(static)
    for (long b = 0; b < B; ++b) {
        const int64_t *p = idx + b * K; float *o = out + b * W;
        long c = 0;
        for (; c + 64 <= W; c += 64) {
            __m256 a[8];
            for (int u = 0; u < 8; ++u) a[u] = _mm256_setzero_ps();
            for (long k = 0; k < K; ++k) {
                if (k + 3 < K) for (int u = 0; u < 4; ++u) _mm_prefetch((const char *)(tab + p[k + 3] * W + c + 16 * u), _MM_HINT_T0);
                const float *r = tab + p[k] * W + c;
                for (int u = 0; u < 8; ++u) a[u] = _mm256_add_ps(a[u], _mm256_loadu_ps(r + 8 * u));
            }
            const __m256 d = _mm256_set1_ps((float)K);
            for (int u = 0; u < 8; ++u) _mm256_storeu_ps(o + c + 8 * u, _mm256_div_ps(a[u], d));
        }
        for (; c < W; ++c) { float a = 0; for (long k = 0; k < K; ++k) a += tab[p[k] * W + c]; o[c] = a / K; }
    }
    return 0;
}
"""
_dir = tempfile.TemporaryDirectory()
subprocess.run(["gcc", "-O3", "-mavx2", "-fopenmp", "-shared", "-fPIC", "-xc", "-", "-o", _dir.name + "/b.so"], input=SRC.encode(), check=True)
_bags = ctypes.CDLL(_dir.name + "/b.so").bags
_bags.argtypes = [ctypes.c_void_p] * 3 + [ctypes.c_long] * 4 + [ctypes.c_int]


@torch.library.custom_op("blindbags::mean", mutates_args=(), device_types="cpu")
def bag_mean(idx: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
    idx, table = idx.contiguous(), table.contiguous()
    out = table.new_empty(idx.shape[0], table.shape[1])
    if _bags(idx.data_ptr(), table.data_ptr(), out.data_ptr(), *idx.shape, *table.shape, torch.get_num_threads()):
        raise IndexError("index out of range in self")
    return out


@bag_mean.register_fake
def _(idx, table):
    return table.new_empty(idx.shape[0], table.shape[1])


class ModelNew(nn.Module):
    def __init__(self, entries, width):
        super().__init__()
        self.emb = nn.EmbeddingBag(entries, width, mode="mean")

    def forward(self, idx):
        return bag_mean(idx, self.emb.weight)
