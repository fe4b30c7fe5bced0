"""3x3 median by the 19 exchanges of Paeth's network, whole rows at once (the compiler vectorises min/max)."""
import ctypes
import itertools
import subprocess
import tempfile

import torch

EXCHANGES = [(1, 2), (4, 5), (7, 8), (0, 1), (3, 4), (6, 7), (1, 2), (4, 5), (7, 8), (0, 3), (5, 8), (4, 7), (3, 6), (1, 4),
             (2, 5), (4, 7), (4, 2), (6, 4), (4, 2)]


def source() -> str:
    loads = "\n".join(f"      float v{3 * r + c} = p[{r} * w + j + {c}];" for r, c in itertools.product(range(3), repeat=2))
    nan = "+".join(f"v{i}" for i in range(9)).replace("+", " | ").replace("v", "bad(v") .replace(" |", ") |") + ")"
    swaps = "\n".join(f"      {{ float lo = v{a} < v{b} ? v{a} : v{b}, hi = v{a} < v{b} ? v{b} : v{a}; v{a} = lo; v{b} = hi; }}" for a, b in EXCHANGES)
    return f"""
#include <math.h>
static inline int bad(float v) {{ return v != v; }}
void median(const float* x, float* y, long planes, long h, long w) {{
  #pragma omp parallel for collapse(2)
  for (long k = 0; k < planes; k++) for (long i = 0; i < h - 2; i++) {{
    const float* p = x + (k * h + i) * w; float* q = y + (k * (h - 2) + i) * (w - 2);
    for (long j = 0; j < w - 2; j++) {{
{loads}
      const int any = {nan};
{swaps}
      q[j] = any ? NAN : v4;
    }}
  }}
}}
"""


so = tempfile.mktemp(".so")
subprocess.run(["gcc", "-O3", "-mavx2", "-fopenmp", "-shared", "-fPIC", "-xc", "-", "-o", so], input=source().encode(), check=True)
median = ctypes.CDLL(so).median
median.argtypes = [ctypes.c_void_p] * 2 + [ctypes.c_long] * 3


class ModelNew(torch.nn.Module):
    def forward(self, x):
        x = x.contiguous()
        b, c, h, w = x.shape
        y = x.new_empty(b, c, h - 2, w - 2)
        median(x.data_ptr(), y.data_ptr(), b * c, h, w)
        return y
