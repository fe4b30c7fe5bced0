import ctypes, os, subprocess, tempfile
import torch
from torch import nn

# Two-pass prefix sums: (1) each thread integrates its strip of rows, (2) strips get the totals above them,
# (3) windows. Unsigned 64 bit arithmetic wraps exactly like torch's int64.
CPP = r"""
#include <cstdint>
#include <vector>
using u64 = uint64_t;
extern "C" void integral(const int32_t* x, u64* s, u64* box, int64_t N, int64_t H, int64_t W, int64_t R) {
    const int64_t P = W + 1, strips = H < 4 ? 1 : 4;
    const int64_t plane = (H + 1) * P;
    auto lo = [&](int64_t k) { return H * k / strips; };
    #pragma omp parallel for collapse(2)
    for (int64_t n = 0; n < N; n++)
        for (int64_t k = 0; k < strips; k++) {
            u64* S = s + n * plane;
            if (k == 0) for (int64_t j = 0; j < P; j++) S[j] = 0;
            for (int64_t y = lo(k); y < lo(k + 1); y++) {
                const int32_t* in = x + (n * H + y) * W;
                u64 *o = S + (y + 1) * P, acc = 0;
                o[0] = 0;
                for (int64_t j = 0; j < W; j++) { acc += (u64)(int64_t)in[j]; o[j + 1] = acc; }
                if (y != lo(k)) for (int64_t j = 1; j < P; j++) o[j] += o[j - P];
            }
        }
    std::vector<u64> carry(N * strips * P, 0);
    #pragma omp parallel for
    for (int64_t n = 0; n < N; n++)
        for (int64_t k = 1; k < strips; k++) {
            const u64* last = s + n * plane + lo(k) * P;
            for (int64_t j = 0; j < P; j++) carry[(n * strips + k) * P + j] = carry[(n * strips + k - 1) * P + j] + last[j];
        }
    #pragma omp parallel for collapse(2)
    for (int64_t n = 0; n < N; n++)
        for (int64_t k = 1; k < strips; k++)
            for (int64_t y = lo(k); y < lo(k + 1); y++) {
                u64* o = s + n * plane + (y + 1) * P;
                const u64* c = &carry[(n * strips + k) * P];
                for (int64_t j = 0; j < P; j++) o[j] += c[j];
            }
    const int64_t BH = H + 1 - R, BW = P - R;
    #pragma omp parallel for collapse(2)
    for (int64_t n = 0; n < N; n++)
        for (int64_t y = 0; y < BH; y++) {
            const u64 *a = s + n * plane + y * P, *b = a + R * P;
            u64* o = box + (n * BH + y) * BW;
            for (int64_t j = 0; j < BW; j++) o[j] = b[j + R] - a[j + R] - b[j] + a[j];
        }
}
"""


def make():
    folder = tempfile.mkdtemp()
    name = os.path.join(folder, "integral.cpp")
    with open(name, "w") as f:
        f.write(CPP)
    subprocess.check_call(["g++", "-O3", "-march=native", "-fopenmp", "-shared", "-fPIC", name, "-o", name + ".so"])
    f = ctypes.CDLL(name + ".so").integral
    f.argtypes = [ctypes.c_void_p] * 3 + [ctypes.c_int64] * 4
    f.restype = None
    return f


integral = make()


class ModelNew(nn.Module):
    def __init__(self, r):
        super().__init__()
        self.r = r

    def forward(self, x):
        assert x.dtype == torch.int32 and x.dim() == 3
        x = x.contiguous()
        n, h, w = x.shape
        assert h >= self.r and w >= self.r
        s = torch.empty(n, h + 1, w + 1, dtype=torch.int64)
        box = torch.empty(n, h + 1 - self.r, w + 1 - self.r, dtype=torch.int64)
        integral(x.data_ptr(), s.data_ptr(), box.data_ptr(), n, h, w, self.r)
        return box, s
