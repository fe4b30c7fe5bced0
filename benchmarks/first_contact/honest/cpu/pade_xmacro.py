import ctypes, subprocess, tempfile, textwrap
import torch, torch.nn as nn

# Pade activation unit. The degree lives in ONE place (the X macros); everything else is expanded from it.
SRC = textwrap.dedent(r"""
    #include <math.h>
    #define TOP(X)    X(5) X(4) X(3) X(2) X(1) X(0)
    #define BOTTOM(X) X(0) X(1) X(2) X(3)
    void pau(const double* restrict x, const double* restrict t, const double* restrict u, double* restrict y, long n) {
      #pragma omp parallel for simd schedule(static)
      for (long i = 0; i < n; i++) {
        const double v = x[i];
        double p = 0, q = 1, w = 1;
    #define X(K) p = p * v + t[K];
        TOP(X)
    #undef X
    #define X(K) w *= v; q += fabs(u[K] * w);
        BOTTOM(X)
    #undef X
        y[i] = p / q;
      }
    }
""")
_name = tempfile.mktemp(suffix=".so")
subprocess.run("gcc -O3 -march=native -fopenmp -shared -fPIC -xc - -lm -o".split() + [_name], input=SRC.encode(), check=True)
pau = ctypes.CDLL(_name).pau
pau.argtypes = [ctypes.POINTER(ctypes.c_double)] * 4 + [ctypes.c_long]


def d(t: torch.Tensor):
    return ctypes.cast(t.data_ptr(), ctypes.POINTER(ctypes.c_double))


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        self.top = nn.Parameter(torch.tensor([0.02, 0.5, 1.0, 0.3, 0.1, 0.01], dtype=torch.float64))
        self.bottom = nn.Parameter(torch.tensor([0.4, 0.2, 0.05, 0.01], dtype=torch.float64))

    @torch.no_grad()
    def forward(self, x):
        x = x.contiguous()
        y = torch.empty_like(x)
        pau(d(x), d(self.top), d(self.bottom), d(y), x.numel())
        return y
