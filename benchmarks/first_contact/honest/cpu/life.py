import ctypes, os, subprocess, tempfile
import torch
import torch.nn as nn

# Bit-sliced Life: 64 cells per word, neighbours counted by carry-save adders. Any width: the last word of a row is partial.
SRC = r"""
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
typedef uint64_t u64;
static inline u64 left(const u64* r, int k, int words, int w) {       // bit x holds cell x - 1
    u64 in = k ? r[k - 1] >> 63 : (r[words - 1] >> ((w - 1) & 63)) & 1;
    return r[k] << 1 | in;
}
static inline u64 right(const u64* r, int k, int words, int w) {      // bit x holds cell x + 1
    u64 v = r[k] >> 1;
    if (k + 1 < words) return v | r[k + 1] << 63;
    return v | (r[0] & 1) << ((w - 1) & 63);
}
#define FA(s, c, x, y, z) { u64 t = (x) ^ (y); s = t ^ (z); c = ((x) & (y)) | (t & (z)); }
static void step(const u64* a, u64* b, int H, int words, int w) {
    const u64 tail = (w & 63) ? (1ull << (w & 63)) - 1 : ~0ull;
    for (int y = 0; y < H; y++) {
        const u64 *m = a + (size_t)y * words, *u = a + (size_t)((y + H - 1) % H) * words, *d = a + (size_t)((y + 1) % H) * words;
        for (int k = 0; k < words; k++) {
            u64 s0, c0, s1, c1, s2, c2;
            FA(s0, c0, left(u, k, words, w), u[k], right(u, k, words, w))
            FA(s1, c1, left(m, k, words, w), m[k], right(m, k, words, w))
            FA(s2, c2, left(d, k, words, w), d[k], right(d, k, words, w))
            u64 ones, t0, twos, t1, f0, f1;
            FA(ones, t0, s0, s1, s2)
            FA(twos, f0, c0, c1, c2)
            f1 = twos & t0; twos ^= t0;
            u64 fours = f0 ^ f1, eights = f0 & f1;
            (void)t1;
            u64 three = ones & twos & ~fours & ~eights, four = ~ones & ~twos & fours & ~eights;
            u64 v = three | (four & m[k]);
            b[(size_t)y * words + k] = k == words - 1 ? v & tail : v;
        }
    }
}
void life(const uint8_t* in, uint8_t* out, int64_t* pop, long B, int H, int W, int steps) {
    const int words = (W + 63) / 64;
    #pragma omp parallel for
    for (long n = 0; n < B; n++) {
        u64* a = calloc((size_t)H * words, 8); u64* b = calloc((size_t)H * words, 8);
        const uint8_t* src = in + n * H * W;
        for (int y = 0; y < H; y++) for (int x = 0; x < W; x++) a[(size_t)y * words + x / 64] |= (u64)(src[y * W + x] != 0) << (x & 63);
        for (int s = 0; s < steps; s++) { step(a, b, H, words, W); u64* t = a; a = b; b = t; }
        int64_t c = 0;
        for (int i = 0; i < H * words; i++) c += __builtin_popcountll(a[i]);
        pop[n] = c;
        for (int y = 0; y < H; y++) for (int x = 0; x < W; x++) out[(n * H + y) * W + x] = a[(size_t)y * words + x / 64] >> (x & 63) & 1;
        free(a); free(b);
    }
}
"""
tmp = tempfile.mkdtemp()
with open(os.path.join(tmp, "life.c"), "w") as f:
    f.write(SRC)
subprocess.check_call(["gcc", "-O3", "-march=native", "-fopenmp", "-shared", "-fPIC", "life.c", "-o", "life.so"], cwd=tmp)
life = ctypes.CDLL(os.path.join(tmp, "life.so")).life
life.argtypes = [ctypes.c_void_p] * 3 + [ctypes.c_long] + [ctypes.c_int] * 3
life.restype = None


class ModelNew(nn.Module):
    def __init__(self, steps):
        super().__init__()
        self.steps = steps

    def forward(self, cells):
        assert cells.dtype == torch.bool and cells.dim() == 3
        cells = cells.contiguous()
        out = torch.empty_like(cells)
        pop = torch.empty(cells.shape[0], dtype=torch.int64)
        life(cells.data_ptr(), out.data_ptr(), pop.data_ptr(), *cells.shape, self.steps)
        return out, pop
