import ctypes
import os
import subprocess
import tempfile

import torch


def kernel_text(bits=11):
    """LSD radix sort of (key, index) pairs, generated for a digit width."""
    passes = -(-32 // bits)
    hist = "\n".join(f"            ++h[{p}][(k >> {p * bits}) & {(1 << bits) - 1}];" for p in range(passes))
    moves = []
    for p in range(passes):
        a, b = ("A", "B") if p % 2 == 0 else ("B", "A")
        moves.append(f"""
        {{   uint32_t s = 0;
            for (int d = 0; d < {1 << bits}; ++d) {{ uint32_t c = h[{p}][d]; h[{p}][d] = s; s += c; }}
            for (int64_t i = 0; i < n; ++i) {{ pair q = {a}[i]; {b}[h[{p}][(q.key >> {p * bits}) & {(1 << bits) - 1}]++] = q; }}
        }}""")
    final = "A" if passes % 2 == 0 else "B"
    return f"""
#include <cstdint>
#include <cstring>
#include <vector>
struct pair {{ uint32_t key, index; }};
static thread_local std::vector<pair> bufa, bufb;

// ascending order of the keys is PyTorch's: -0 equals +0, NaNs are equal and last
static inline uint32_t order(float f) {{
    if (f != f) return 0xffffffffu;
    f += 0.0f;                       // -0 -> +0
    uint32_t u; memcpy(&u, &f, 4);
    return u & 0x80000000u ? ~u : u | 0x80000000u;
}}

extern "C" void sort_rows(const float* x, float* v, int64_t* ix, int64_t rows, int64_t n) {{
    #pragma omp parallel for schedule(dynamic, 1)
    for (int64_t r = 0; r < rows; ++r) {{
        if ((int64_t)bufa.size() < n) {{ bufa.resize(n); bufb.resize(n); }}
        pair *A = bufa.data(), *B = bufb.data();
        static thread_local uint32_t h[{passes}][{1 << bits}];
        memset(h, 0, sizeof h);
        const float* a = x + r * n;
        for (int64_t i = 0; i < n; ++i) {{
            uint32_t k = order(a[i]);
            A[i] = {{k, (uint32_t)i}};
{hist}
        }}
        {"".join(moves)}
        for (int64_t i = 0; i < n; ++i) {{ uint32_t j = {final}[i].index; v[r * n + i] = a[j]; ix[r * n + i] = j; }}
    }}
}}
"""


class ModelNew(torch.nn.Module):
    def __init__(self):
        super().__init__()
        with tempfile.TemporaryDirectory() as d:
            path = os.path.join(d, "radix.cpp")
            with open(path, "w") as f:
                f.write(kernel_text())
            subprocess.run(["g++", "-O3", "-march=native", "-fopenmp", "-shared", "-fPIC", path, "-o", path + ".so"], check=True)
            self._lib = ctypes.CDLL(path + ".so")

    def forward(self, x):
        x = x.contiguous()
        values = torch.empty_like(x)
        indices = torch.empty(x.shape, dtype=torch.int64)
        n = x.shape[-1]
        self._lib.sort_rows(*(ctypes.c_void_p(t.data_ptr()) for t in (x, values, indices)), ctypes.c_int64(x.numel() // n), ctypes.c_int64(n))
        return values, indices
