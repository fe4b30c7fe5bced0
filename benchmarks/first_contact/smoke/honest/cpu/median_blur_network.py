"""3x3 median by a 19-exchange network on vectors; the network is generated from a list of pairs."""
import ctypes, os, subprocess, tempfile
import torch
import torch.nn as nn

NETWORK = [(1, 2), (4, 5), (7, 8), (0, 1), (3, 4), (6, 7), (1, 2), (4, 5), (7, 8), (0, 3),
           (5, 8), (4, 7), (3, 6), (1, 4), (2, 5), (4, 7), (4, 2), (6, 4), (4, 2)]

def source():
    loads = "\n".join(f"            float v{3*r+c} = p{r}[x + {c}]; nan |= v{3*r+c} != v{3*r+c};"
                      for r in range(3) for c in range(3))
    steps = "\n".join(f"            {{ float a = v{i}, b = v{j}; v{i} = b < a ? b : a; v{j} = b < a ? a : b; }}" for i, j in NETWORK)
    return f"""
#include <math.h>
#include <stdlib.h>
static long mirror(long i, long n) {{ return i < 0 ? -i : i >= n ? 2 * n - 2 - i : i; }}
int median(const float* in, float* out, long planes, long H, long W) {{
    float* pad = malloc(sizeof(float) * (H + 2) * (W + 2));
    if (!pad) return 1;
    const long S = W + 2;
    for (long c = 0; c < planes; ++c) {{
        const float* s = in + c * H * W; float* o = out + c * H * W;
        for (long y = 0; y < H + 2; ++y) {{
            const float* row = s + mirror(y - 1, H) * W;
            for (long x = 0; x < W; ++x) pad[y * S + x + 1] = row[x];
            pad[y * S] = row[1]; pad[y * S + W + 1] = row[W - 2];
        }}
        for (long y = 0; y < H; ++y) {{
            const float *p0 = pad + y * S, *p1 = p0 + S, *p2 = p1 + S;
            #pragma omp simd
            for (long x = 0; x < W; ++x) {{
            int nan = 0;
{loads}
{steps}
            o[y * W + x] = nan ? NAN : v4;
            }}
        }}
    }}
    free(pad);
    return 0;
}}
"""

def build():
    with tempfile.TemporaryDirectory() as d:
        subprocess.run(["gcc", "-O3", "-march=native", "-fopenmp-simd", "-fno-trapping-math", "-shared", "-fPIC",
                        "-x", "c", "-", "-o", d + "/m.so"], input=source().encode(), check=True)
        f = ctypes.CDLL(d + "/m.so").median
    f.argtypes = [ctypes.c_void_p] * 2 + [ctypes.c_long] * 3
    return f

class ModelNew(nn.Module):
    median = None

    def __init__(self):
        super().__init__()
        if ModelNew.median is None:
            ModelNew.median = staticmethod(build())

    def forward(self, x):
        if x.dtype != torch.float32 or x.dim() != 4 or min(x.shape[2:]) < 2:
            raise ValueError("float32 images of at least 2x2")
        x = x.contiguous()
        out = torch.empty_like(x)
        B, C, H, W = x.shape
        if self.median(x.data_ptr(), out.data_ptr(), B * C, H, W):
            raise MemoryError
        return out
