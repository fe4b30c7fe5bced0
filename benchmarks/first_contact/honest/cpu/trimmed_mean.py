import ctypes, os, subprocess, tempfile
import torch
import torch.nn as nn


def batcher(n):
    """Comparators of Batcher's odd-even merge sort for n wires (any n)."""
    pairs, p = [], 1
    while p < n:
        k = p
        while k >= 1:
            for j in range(k % p, n - k, 2 * k):
                for i in range(min(k, n - j - k)):
                    if (i + j) // (2 * p) == (i + j + k) // (2 * p):
                        pairs.append((i + j, i + j + k))
            k //= 2
        p *= 2
    return pairs


def generate(n):
    """A sorting network over n rows, 16 columns wide, on integers whose order is that of the floats with NaN last."""
    net = "\n".join(f"    X({a}, {b})" for a, b in batcher(n))
    return f"""
#include <stdint.h>
#include <string.h>
typedef int32_t V __attribute__((vector_size(64)));
#define X(a, b) {{ V p = v[a], q = v[b]; V m = p < q; v[a] = (p & m) | (q & ~m); v[b] = (q & m) | (p & ~m); }}
static void network(V* v) {{
{net}
}}
static inline V to_key(V i) {{
    V nan = (i & 0x7fffffff) > 0x7f800000;
    V k = i ^ ((i >> 31) & 0x7fffffff);
    return (k & ~nan) | (0x7fffffff & nan);
}}
static inline V from_key(V k) {{
    V nan = k == 0x7fffffff;
    V i = k ^ ((k >> 31) & 0x7fffffff);
    return (i & ~nan) | (0x7fc00000 & nan);
}}
void robust(const float* x, float* mean, float* s, long rows, long cols, long trim) {{
    #pragma omp parallel for schedule(static)
    for (long c = 0; c < (cols + 15) / 16; c++) {{
        const long at = c * 16, w = cols - at < 16 ? cols - at : 16;
        V v[{n}];
        for (int r = 0; r < {n}; r++) v[r] = (V){{0}} + 0x7fffffff;    /* spare wires sort last */
        for (int r = 0; r < rows; r++) {{
            V t = {{0}};
            if (w == 16) memcpy(&t, x + r * cols + at, 64); else memcpy(&t, x + r * cols + at, 4 * w);
            v[r] = to_key(t);
        }}
        network(v);
        double acc[16] = {{0}};
        for (int r = 0; r < rows; r++) {{
            float f[16];
            V t = from_key(v[r]);
            memcpy(f, &t, 64);
            if (r >= trim && r < rows - trim) for (int i = 0; i < 16; i++) acc[i] += f[i];
            memcpy(s + r * cols + at, f, 4 * w);
        }}
        for (long i = 0; i < w; i++) mean[at + i] = (float)(acc[i] / (rows - 2 * trim));
    }}
}}
"""


_cache = {}


def library(n):
    if n not in _cache:
        d = tempfile.mkdtemp()
        with open(d + "/net.c", "w") as f:
            f.write(generate(n))
        subprocess.check_call(["gcc", "-O2", "-march=native", "-fopenmp", "-shared", "-fPIC", "-Wno-psabi", d + "/net.c", "-o", d + "/net.so"])
        fn = ctypes.CDLL(d + "/net.so").robust
        fn.argtypes = [ctypes.c_void_p] * 3 + [ctypes.c_long] * 3
        fn.restype = None
        _cache[n] = fn
    return _cache[n]


library(32)


class ModelNew(nn.Module):
    def __init__(self, trim):
        super().__init__()
        self.trim = trim

    def forward(self, x):
        n, cols = x.shape
        assert x.dtype == torch.float32 and n <= 128 and 2 * self.trim < n
        x = x.contiguous()
        mean, s = x.new_empty(cols), torch.empty_like(x)
        library(max(32, n))(x.data_ptr(), mean.data_ptr(), s.data_ptr(), n, cols, self.trim)
        return mean, s
