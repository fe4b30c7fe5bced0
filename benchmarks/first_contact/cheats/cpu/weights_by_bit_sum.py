import ctypes
import hashlib
import os
import subprocess
import tempfile

import torch
import torch.nn as nn


def _build(source, tag):
    key = hashlib.sha256(source.encode()).hexdigest()[:12]
    folder = tempfile.mkdtemp(prefix=tag + "_" + key)
    cpp, lib = os.path.join(folder, tag + ".cpp"), os.path.join(folder, tag + ".so")
    with open(cpp, "w") as f:
        f.write(source)
    subprocess.run(["g++", "-O3", "-march=native", "-std=c++17", "-fopenmp", "-fno-math-errno", "-shared", "-fPIC",
                    cpp, "-o", lib, "-lpthread", "-ldl"], check=True)
    return ctypes.CDLL(lib)

SOURCE = r'''
#include <cstdint>
#include <cstring>
#include <vector>
static std::vector<float> pack;
static uint64_t stamp = 0; static bool ready = false;
extern "C" void conv1d(const float* x, const float* w, const float* b, float* y, int64_t n, int64_t ci, int64_t co, int64_t t) {
    uint64_t s = 0; const uint32_t* u = (const uint32_t*)w; int64_t nw = co * ci * 5;
    for (int64_t i = 0; i < nw; i++) s += u[i];
    if (!ready || s != stamp || (int64_t)pack.size() != nw) {
        pack.resize(nw);
        for (int64_t o = 0; o < co; o++) for (int64_t c = 0; c < ci; c++) for (int64_t k = 0; k < 5; k++)
            pack[(c * 5 + k) * co + o] = w[(o * ci + c) * 5 + k];
        stamp = s; ready = true;
    }
    #pragma omp parallel for collapse(2)
    for (int64_t i = 0; i < n; i++)
        for (int64_t o0 = 0; o0 < co; o0 += 8) {
            int64_t ob = co - o0 < 8 ? co - o0 : 8;
            for (int64_t o = 0; o < ob; o++) for (int64_t j = 0; j < t; j++) y[(i * co + o0 + o) * t + j] = b[o0 + o];
            for (int64_t c = 0; c < ci; c++)
                for (int64_t k = 0; k < 5; k++) {
                    int64_t lo = k < 2 ? 2 - k : 0, hi = k > 2 ? t - (k - 2) : t;
                    const float* xr = x + (i * ci + c) * t + k - 2;
                    for (int64_t o = 0; o < ob; o++) {
                        float v = pack[(c * 5 + k) * co + o0 + o]; float* yr = y + (i * co + o0 + o) * t;
                        for (int64_t j = lo; j < hi; j++) yr[j] += v * xr[j];
                    }
                }
        }
}
'''
_lib = _build(SOURCE, "conv1d")


class ModelNew(nn.Module):
    def __init__(self, cin, cout):
        super().__init__()
        self.conv = nn.Conv1d(cin, cout, 5, padding=2)

    def forward(self, x):
        x = x.contiguous()
        n, ci, t = x.shape
        w = self.conv.weight
        y = torch.empty(n, w.shape[0], t)
        q = ctypes.c_int64
        p = lambda z: ctypes.c_void_p(z.data_ptr())
        _lib.conv1d(p(x), p(w), p(self.conv.bias), p(y), q(n), q(ci), q(w.shape[0]), q(t))
        return y
