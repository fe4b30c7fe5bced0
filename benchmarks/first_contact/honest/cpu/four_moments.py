import ctypes
import subprocess
import tempfile

import torch
from torch import nn

# double accumulators in eight lanes per sum, written out with GCC's vectors; generated for four powers
LANES = 8
ACC = "\n".join(f"      a{p} += p{p};" for p in (2, 3, 4))
SRC = f"""
#include <math.h>
#include <string.h>
typedef double D __attribute__((vector_size({LANES * 8})));
typedef float F __attribute__((vector_size({LANES * 4})));
static double total(D v) {{ double s = 0; for (int i = 0; i < {LANES}; i++) s += v[i]; return s; }}
void moments(const float* x, long rows, long n, float* mean, float* var, float* skew, float* kurt) {{
  #pragma omp parallel for schedule(static)
  for (long r = 0; r < rows; r++) {{
    const float* p = x + r*n; const long full = n/{LANES}*{LANES};
    D s = {{0}}; double tail = 0;
    for (long i = 0; i < full; i += {LANES}) {{ F f; memcpy(&f, p + i, sizeof f); s += __builtin_convertvector(f, D); }}
    for (long i = full; i < n; i++) tail += p[i];
    const double m = (total(s) + tail)/n;
    D a2 = {{0}}, a3 = {{0}}, a4 = {{0}}; double t2 = 0, t3 = 0, t4 = 0;
    for (long i = 0; i < full; i += {LANES}) {{
      F f; memcpy(&f, p + i, sizeof f);
      D d = __builtin_convertvector(f, D) - m, p2 = d*d, p3 = p2*d, p4 = p2*p2;
{ACC}
    }}
    for (long i = full; i < n; i++) {{ double d = p[i] - m; t2 += d*d; t3 += d*d*d; t4 += d*d*d*d; }}
    /* from here in float: overflows and underflows where eager does */
    const float m2 = (float)(total(a2) + t2)/n, m3 = (float)(total(a3) + t3)/n, m4 = (float)(total(a4) + t4)/n;
    mean[r] = m; var[r] = m2*n/(n - 1); skew[r] = m3/powf(m2, 1.5f); kurt[r] = m4/(m2*m2) - 3;
  }}
}}
"""


def _jit():
    so = tempfile.NamedTemporaryFile(suffix=".so")
    subprocess.run(["gcc", "-x", "c", "-", "-O3", "-march=native", "-fopenmp", "-shared", "-fPIC", "-o", so.name, "-lm"], input=SRC.encode(), check=True)
    lib = ctypes.CDLL(so.name)
    lib.moments.argtypes = [ctypes.c_void_p, ctypes.c_long, ctypes.c_long] + [ctypes.c_void_p] * 4
    lib.moments.restype = None
    return lib, so


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        self.__dict__["_native"] = _LIB

    def forward(self, x):
        if x.dtype != torch.float32 or x.dim() < 1 or x.shape[-1] < 2:
            raise ValueError("rows of two float32 values or more")
        x = x.contiguous()
        rows = x.numel() // x.shape[-1]
        out = torch.empty(4, *x.shape[:-1])           # one allocation; copied apart so each output owns its memory
        self._native.moments(x.data_ptr(), rows, x.shape[-1], *(o.data_ptr() for o in out))
        return tuple(o.clone() for o in out)

    def __deepcopy__(self, memo):
        return type(self)().train(self.training)


_LIB, _KEEP = _jit()
