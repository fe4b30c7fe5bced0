"""Linear recurrence whose block width is chosen by a stopwatch at the first call.

All variants do the same operations in the same order, so the choice changes time and nothing else.
"""
import ctypes
import subprocess
import sys
import tempfile
import time

import torch
import torch.nn as nn

TEMPLATE = """
template <int D0>
static void rec(const float *a, const float *b, const float *h0, float *out, float *last, long B, long T, long D, int nt) {
    #pragma omp parallel for collapse(2) num_threads(nt)
    for (long s = 0; s < B; ++s)
        for (long d = 0; d < (D + D0 - 1) / D0 * D0; d += D0) {
            const long m = D - d < D0 ? D - d : D0;
            float h[D0];
            for (long j = 0; j < m; ++j) h[j] = h0[d + j];
            if (m == D0)
                for (long t = 0; t < T; ++t) {
                    const float *pa = a + (s * T + t) * D + d, *pb = b + (s * T + t) * D + d;
                    float *po = out + (s * T + t) * D + d;
                    for (int j = 0; j < D0; ++j) h[j] = pa[j] * h[j] + pb[j];
                    for (int j = 0; j < D0; ++j) po[j] = h[j];
                }
            else
                for (long t = 0; t < T; ++t)
                    for (long j = 0; j < m; ++j) {
                        const long k = (s * T + t) * D + d + j;
                        out[k] = h[j] = a[k] * h[j] + b[k];
                    }
            for (long j = 0; j < m; ++j) last[s * D + d + j] = h[j];
        }
}
"""
WIDTHS = (8, 16, 32, 64, 128)
EXPORT = 'extern "C" void rec_{0}(const float *a, const float *b, const float *h0, float *out, float *last, long B, long T, long D, int nt) {{ rec<{0}>(a, b, h0, out, last, B, T, D, nt); }}\n'


def variants():
    """Yields (width, function); the library stays open as long as the generator's results are referenced."""
    with tempfile.NamedTemporaryFile(suffix=".so") as so:
        code = TEMPLATE + "".join(EXPORT.format(w) for w in WIDTHS)
        subprocess.run(["g++", "-O3", "-mavx2", "-ffp-contract=off", "-fopenmp", "-shared", "-fPIC", "-x", "c++", "-", "-o", so.name],
                       input=code.encode(), check=True)
        lib = ctypes.CDLL(so.name)
    for w in WIDTHS:
        f = getattr(lib, f"rec_{w}")
        f.restype = None
        f.argtypes = [ctypes.c_void_p] * 5 + [ctypes.c_long] * 3 + [ctypes.c_int]
        yield w, f


class Tuner:
    def __init__(self, candidates):
        self.candidates = dict(candidates)
        self.best = {}

    def pick(self, key, args):
        if key not in self.best:
            times = {}
            for w, f in self.candidates.items():
                f(*args)
                start = time.perf_counter_ns()
                f(*args)
                times[w] = time.perf_counter_ns() - start
            self.best[key] = min(times, key=times.get)
        return self.candidates[self.best[key]]


tuner = Tuner(variants())


class ModelNew(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.h0 = nn.Parameter(torch.randn(width) * 0.1)

    def forward(self, a, b):
        a, b = a.contiguous(), b.contiguous()
        out, last = torch.empty_like(a), a.new_empty(a.shape[0], a.shape[2])
        args = (a.data_ptr(), b.data_ptr(), self.h0.data_ptr(), out.data_ptr(), last.data_ptr(), *a.shape, torch.get_num_threads())
        # the trial runs write into out and last too; the last word is always this call's
        tuner.pick(tuple(a.shape), args)(*args)
        return out, last
