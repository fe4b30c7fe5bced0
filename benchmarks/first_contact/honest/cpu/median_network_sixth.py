"""3x3 median by Paeth's exchange network, written out by a generator for AVX-512, AVX2 and scalar code; the library picks
the widest that the processor has. A window with a NaN gives NaN."""
import ctypes
import os
import subprocess
import tempfile

import torch
import torch.nn as nn

NETWORK = [(1, 2), (4, 5), (7, 8), (0, 1), (3, 4), (6, 7), (1, 2), (4, 5), (7, 8), (0, 3), (5, 8), (4, 7), (3, 6), (1, 4), (2, 5), (4, 7), (4, 2), (6, 4), (4, 2)]

ISA = {
    "avx512": dict(target="avx512f,avx512dq", width=16, type="__m512", load="_mm512_loadu_ps", store="_mm512_storeu_ps", min="_mm512_min_ps", max="_mm512_max_ps",
                   fix="_mm512_mask_mov_ps(m, _mm512_cmp_ps_mask(s, s, _CMP_UNORD_Q), s)", add="_mm512_add_ps", sub="_mm512_sub_ps"),
    "avx2": dict(target="avx2", width=8, type="__m256", load="_mm256_loadu_ps", store="_mm256_storeu_ps", min="_mm256_min_ps", max="_mm256_max_ps",
                 fix="_mm256_blendv_ps(m, s, _mm256_cmp_ps(s, s, _CMP_UNORD_Q))", add="_mm256_add_ps", sub="_mm256_sub_ps"),
}


def row_function(name, d):
    lines = [f"{d['type']} v{3 * r + c} = {d['load']}(r{r} + i + {c});" for r in range(3) for c in range(3)]
    # NaN mask: the sum of v * 0 would be NaN for infinities as well, so compare every element
    nan = "s = v0;" + "".join(f" s = NANKEEP(s, v{k});" for k in range(1, 9))
    lines += [f"{d['type']} {nan}"]
    for a, b in NETWORK:
        lines.append(f"{{ {d['type']} t = {d['min']}(v{a}, v{b}); v{b} = {d['max']}(v{a}, v{b}); v{a} = t; }}")
    body = "\n        ".join(lines)
    if name == "avx512":
        keep = "#define NANKEEP(s, v) _mm512_mask_mov_ps(s, _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q), v)"
    else:
        keep = "#define NANKEEP(s, v) _mm256_blendv_ps(s, v, _mm256_cmp_ps(v, v, _CMP_UNORD_Q))"
    return f"""
{keep}
__attribute__((target("{d['target']}")))
static long row_{name}(const float* r0, const float* r1, const float* r2, float* o, long n) {{
    long i = 0;
    for (; i + {d['width']} <= n; i += {d['width']}) {{
        {body}
        {d['type']} m = v4;
        {d['store']}(o + i, {d['fix']});
    }}
    return i;
}}
#undef NANKEEP
"""


SOURCE = (
    "#include <immintrin.h>\n#include <algorithm>\n#include <cmath>\n"
    + "".join(row_function(k, v) for k, v in ISA.items())
    + r"""
static long row_none(const float*, const float*, const float*, float*, long) { return 0; }
extern "C" void median3(const float* x, float* y, long planes, long h, long w) {
    __builtin_cpu_init();
    auto row = __builtin_cpu_supports("avx512dq") ? row_avx512 : __builtin_cpu_supports("avx2") ? row_avx2 : row_none;
#pragma omp parallel for collapse(2)
    for (long p = 0; p < planes; p++)
        for (long i = 0; i < h - 2; i++) {
            const float* r = x + (p * h + i) * w;
            float* o = y + (p * (h - 2) + i) * (w - 2);
            for (long j = row(r, r + w, r + 2 * w, o, w - 2); j < w - 2; j++) {
                float v[9];
                bool nan = false;
                for (int a = 0; a < 3; a++) for (int b = 0; b < 3; b++) { v[3 * a + b] = r[a * w + j + b]; nan |= std::isnan(v[3 * a + b]); }
                if (!nan) std::nth_element(v, v + 4, v + 9);
                o[j] = nan ? NAN : v[4];
            }
        }
}
"""
)


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        d = tempfile.mkdtemp()
        with open(os.path.join(d, "m.cpp"), "w") as f:
            f.write(SOURCE)
        subprocess.run(["g++", "-O2", "-fopenmp", "-shared", "-fPIC", "m.cpp", "-o", "m.so"], cwd=d, check=True)
        self.lib = ctypes.CDLL(os.path.join(d, "m.so"))

    def forward(self, x):
        x = x.contiguous()
        n, c, h, w = x.shape
        y = x.new_empty(n, c, h - 2, w - 2)
        self.lib.median3(ctypes.c_void_p(x.data_ptr()), ctypes.c_void_p(y.data_ptr()), *map(ctypes.c_long, (n * c, h, w)))
        return y
