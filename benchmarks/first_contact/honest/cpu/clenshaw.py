import ctypes, os, subprocess, tempfile
import torch
import torch.nn as nn


def emit(degree):
    """Write the fully unrolled recurrence as straight-line C; coefficients stay run-time values."""
    out = ["#include <stdint.h>",
           "void cheb(const double* x, const double* c, double* y, int64_t rows, int64_t C, int64_t n) {",
           "#pragma omp parallel for schedule(static)",
           "for (int64_t r = 0; r < rows; r++) {", "  const int64_t ch = r % C;"]
    out += [f"  const double c{k} = c[{k} * C + ch];" for k in range(degree + 1)]
    out += ["  const double* restrict p = x + r * n; double* restrict q = y + r * n;", "  for (int64_t i = 0; i < n; i++) {",
            "    const double t = p[i], u = 2 * t;", "    double a = 0, b = 0, s;"]
    out += [f"    s = c{k} + u * a - b; b = a; a = s;" for k in range(degree, 0, -1)]
    out += ["    q[i] = c0 + t * a - b;", "  }", "}", "}"]
    return "\n".join(out)


class Jit:
    made = {}

    def __new__(cls, degree):
        if degree not in cls.made:
            d = tempfile.mkdtemp()
            # no contraction: the same roundings as the unfused reference
            subprocess.run(["gcc", "-O3", "-march=native", "-ffp-contract=off", "-fopenmp", "-fPIC", "-shared", "-x", "c", "-", "-o", d + "/cheb.so"],
                           input=emit(degree).encode(), check=True)
            f = ctypes.CDLL(os.path.join(d, "cheb.so")).cheb
            f.argtypes = [ctypes.c_void_p] * 3 + [ctypes.c_int64] * 3
            f.restype = None
            cls.made[degree] = f
        return cls.made[degree]


class ModelNew(nn.Module):
    def __init__(self, channels, degree):
        super().__init__()
        self.coef = nn.Parameter(torch.randn(degree + 1, channels, 1, dtype=torch.float64) / 3)
        self.kernel = Jit(degree)

    def __deepcopy__(self, memo):
        twin = ModelNew(self.coef.shape[1], self.coef.shape[0] - 1)
        twin.load_state_dict(self.state_dict())
        return twin

    def forward(self, x):
        c = self.coef.detach().contiguous()
        assert x.dtype == c.dtype == torch.float64 and x.dim() == 3 and x.shape[1] == c.shape[1]
        x = x.contiguous()
        y = torch.empty_like(x)
        self.kernel(x.data_ptr(), c.data_ptr(), y.data_ptr(), x.shape[0] * x.shape[1], x.shape[1], x.shape[2])
        return y
