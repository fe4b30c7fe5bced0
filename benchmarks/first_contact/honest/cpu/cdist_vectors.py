"""L1 distances with GCC vector extensions; y is transposed into a thread_local arena that only grows."""
import ctypes
import pathlib
import subprocess
import tempfile

import torch
import torch.nn as nn

CPP = r"""
#include <cstdlib>
#include <cstdint>
#include <memory>
#include <new>
using vf = float __attribute__((vector_size(32)));
using vi = int32_t __attribute__((vector_size(32)));

class Arena {
    char *base = nullptr; size_t size = 0, used = 0;
public:
    ~Arena() { free(base); }
    void reset(size_t need) {
        used = 0;
        if (need > size) { free(base); base = (char *)aligned_alloc(64, size = (need + 4095) & ~size_t(4095)); if (!base) throw std::bad_alloc(); }
    }
    template <class T> T *take(size_t n) { T *p = (T *)(base + used); used += (n * sizeof(T) + 63) & ~size_t(63); return p; }
};
static thread_local Arena arena;

static inline vf absolute(vf v) { return (vf)((vi)v & 0x7fffffff); }

extern "C" void l1(const float *x, const float *y, float *out, long M, long N, long D, int nt) {
    const long NP = (N + 31) / 32 * 32;
    arena.reset((NP * D + 64) * sizeof(float));
    float *t = arena.take<float>(NP * D);
    for (long j = 0; j < NP; ++j)
        for (long d = 0; d < D; ++d) t[(j / 32) * 32 * D + d * 32 + j % 32] = j < N ? y[j * D + d] : 0.f;
    auto tile = [=](const float *xr, const float *tp, float *o, long m, long cols) {
        vf acc[2][4] = {};
        for (long d = 0; d < D; ++d) {
            const vf *q = (const vf *)(tp + d * 32);
            #pragma GCC unroll 2
            for (int r = 0; r < 2; ++r) {
                const float s = xr[(r < m ? r : 0) * D + d];
                #pragma GCC unroll 4
                for (int c = 0; c < 4; ++c) acc[r][c] += absolute(s - q[c]);
            }
        }
        for (int r = 0; r < m; ++r) for (long c = 0; c < cols; ++c) o[r * N + c] = acc[r][c / 8][c % 8];
    };
    #pragma omp parallel for num_threads(nt)
    for (long i = 0; i < (M + 1) / 2; ++i)
        for (long j = 0; j < N; j += 32)
            tile(x + 2 * i * D, t + j * D, out + 2 * i * N + j, M - 2 * i < 2 ? 1 : 2, N - j < 32 ? N - j : 32);
}
"""

here = pathlib.Path(tempfile.mkdtemp(prefix="l1."))
(here / "l1.cc").write_text(CPP)
subprocess.run(["make", "-s", "-f", "-", "l1.so"], cwd=here, check=True, text=True,
               input="l1.so: l1.cc\n\tg++ -O3 -mavx2 -mfma -fopenmp -Wno-psabi -shared -fPIC $< -o $@\n") \
    if __import__("shutil").which("make") else \
    subprocess.run(["g++", "-O3", "-mavx2", "-mfma", "-fopenmp", "-Wno-psabi", "-shared", "-fPIC", "l1.cc", "-o", "l1.so"], cwd=here, check=True)
l1 = ctypes.CDLL(str(here / "l1.so")).l1
l1.argtypes = [ctypes.c_void_p] * 3 + [ctypes.c_long] * 3 + [ctypes.c_int]


class ModelNew(nn.Module):
    def forward(self, x, y):
        x, y = x.contiguous(), y.contiguous()
        out = x.new_empty(len(x), len(y))
        l1(x.data_ptr(), y.data_ptr(), out.data_ptr(), len(x), len(y), x.shape[1], torch.get_num_threads())
        return out
