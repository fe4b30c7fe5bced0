"""Linear + exact GELU. The packed weights live beside an exact copy of what they were packed from; every call compares
the copy with the parameter byte by byte, panel by panel, and packs again what differs."""
import ctypes
import pathlib
import subprocess
import tempfile

import torch
import torch.nn as nn

CODE = r"""
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>

typedef float vec __attribute__((vector_size(64), aligned(4)));
constexpr int P = 16, R = 6;

struct Cache { int64_t inner, outer, panels; float* seen; float* packed; };

extern "C" Cache* cache_new(int64_t inner, int64_t outer) {
    Cache* c = new Cache{inner, outer, (outer + P - 1) / P, nullptr, nullptr};
    size_t bytes = (size_t)c->panels * P * inner * sizeof(float);
    c->seen = (float*)aligned_alloc(64, bytes);
    c->packed = (float*)aligned_alloc(64, bytes);
    memset(c->seen, 0xff, bytes);                       // NaNs of an unusual kind; equal bytes would pack to the same
    memset(c->packed, 0xff, bytes);
    return c;
}
extern "C" void cache_free(Cache* c) { free(c->seen); free(c->packed); delete c; }

static void refresh(Cache* c, int64_t p, const float* w) {
    int64_t first = p * P, n = c->outer - first < P ? c->outer - first : P;
    float* seen = c->seen + first * c->inner;
    const float* now = w + first * c->inner;
    size_t bytes = n * c->inner * sizeof(float);
    if (memcmp(seen, now, bytes) == 0) return;
    memcpy(seen, now, bytes);
    float* to = c->packed + p * P * c->inner;
    for (int64_t k = 0; k < c->inner; ++k)
        for (int j = 0; j < P; ++j) to[k * P + j] = j < n ? now[j * c->inner + k] : 0.0f;
}

// resolved by the dynamic loader for the machine at hand
__attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
void block(const float* x, const float* packed, int64_t inner, int64_t rows, float* sums) {
    vec s[R] = {};
    if (rows == R) {
        for (int64_t k = 0; k < inner; ++k) {
            vec w = *(const vec*)(packed + k * P);
            for (int r = 0; r < R; ++r) s[r] += x[r * inner + k] * w;
        }
    } else {
        for (int64_t k = 0; k < inner; ++k) {
            vec w = *(const vec*)(packed + k * P);
            for (int r = 0; r < rows; ++r) s[r] += x[r * inner + k] * w;
        }
    }
    memcpy(sums, s, sizeof s);
}

extern "C" void forward(Cache* c, const float* x, const float* w, const float* b, float* y, int64_t rows, int threads) {
    const int64_t inner = c->inner, outer = c->outer;
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t p = 0; p < c->panels; ++p) {
        refresh(c, p, w);
        int64_t n = outer - p * P < P ? outer - p * P : P;
        for (int64_t i = 0; i < rows; i += R) {
            int64_t m = rows - i < R ? rows - i : R;
            alignas(64) float sums[R * P];
            block(x + i * inner, c->packed + p * P * inner, inner, m, sums);
            for (int64_t r = 0; r < m; ++r)
                for (int64_t j = 0; j < n; ++j) {
                    float v = sums[r * P + j] + b[p * P + j];
                    y[(i + r) * outer + p * P + j] = 0.5f * v * (1.0f + erff(v * 0.70710678118654752f));
                }
        }
    }
}
"""


def _load():
    place = pathlib.Path(tempfile.mkdtemp())
    (place / "linear_gelu.cc").write_text(CODE)
    subprocess.check_call(["g++", "-O3", "-ffp-contract=fast", "-fopenmp", "-shared", "-fPIC", "-Wno-psabi", "-o",
                           str(place / "linear_gelu.so"), str(place / "linear_gelu.cc")])
    library = ctypes.CDLL(str(place / "linear_gelu.so"))
    v, n = ctypes.c_void_p, ctypes.c_int64
    library.cache_new.argtypes, library.cache_new.restype = [n, n], v
    library.cache_free.argtypes, library.cache_free.restype = [v], None
    library.forward.argtypes, library.forward.restype = [v, v, v, v, v, n, ctypes.c_int], None
    return library


class Owner:
    """Frees the native cache with the module."""
    def __init__(self, library, inner, outer):
        self.library = library
        self.pointer = library.cache_new(inner, outer)

    def __del__(self):
        self.library.cache_free(self.pointer)


class ModelNew(nn.Module):
    library = None

    def __init__(self, inner, outer):
        super().__init__()
        self.linear = nn.Linear(inner, outer)
        if ModelNew.library is None:
            ModelNew.library = _load()
        self.cache = Owner(ModelNew.library, inner, outer)

    def forward(self, x):
        w, b = self.linear.weight.contiguous(), self.linear.bias
        flat = x.reshape(-1, x.shape[-1]).contiguous()
        y = torch.empty(*x.shape[:-1], w.shape[0])
        self.library.forward(self.cache.pointer, flat.data_ptr(), w.data_ptr(), b.data_ptr(), y.data_ptr(),
                             flat.shape[0], torch.get_num_threads())
        return y
