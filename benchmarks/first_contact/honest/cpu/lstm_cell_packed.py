import ctypes
import hashlib
import os
import subprocess
import tempfile
import weakref

import torch
import torch.nn as nn

SRC = r"""
#include <cmath>
#include <cstdint>

// Packed weights: for every block of 8 hidden units the four gates lie side by side,
// [block][k over inputs then hidden][gate][8], so that one pass over k feeds 32 accumulators.
constexpr int U = 8;

extern "C" void lstm_pack(const float* wi, const float* wh, const float* bi, const float* bh, float* pw, float* pb, int I, int H) {
    for (int b = 0; b < (H + U - 1) / U; ++b)
        for (int g = 0; g < 4; ++g)
            for (int u = 0; u < U; ++u) {
                const int unit = b * U + u;
                const bool in = unit < H;
                const int64_t row = (int64_t)g * H + unit;
                for (int k = 0; k < I + H; ++k)
                    pw[(((int64_t)b * (I + H) + k) * 4 + g) * U + u] = !in ? 0.f : k < I ? wi[row * I + k] : wh[row * H + k - I];
                pb[(b * 4 + g) * 2 * U + u] = in ? bi[row] : 0.f;
                pb[(b * 4 + g) * 2 * U + U + u] = in ? bh[row] : 0.f;
            }
}

static inline float sig(float v) { return 1.f / (1.f + std::exp(-v)); }

extern "C" void lstm_step(const float* x, const float* h, const float* c, const float* pw, const float* pb,
                          float* ho, float* co, int N, int I, int H) {
    const int blocks = (H + U - 1) / U;
    #pragma omp parallel for collapse(2) schedule(static)
    for (int b = 0; b < blocks; ++b)
        for (int n = 0; n < N; ++n) {
            float a[4 * U] = {}, r[4 * U] = {};      // from the inputs, and recurrent
            const float* w = pw + (int64_t)b * (I + H) * 4 * U;
            for (int k = 0; k < I; ++k, w += 4 * U) { const float v = x[n * I + k]; for (int j = 0; j < 4 * U; ++j) a[j] += v * w[j]; }
            for (int k = 0; k < H; ++k, w += 4 * U) { const float v = h[n * H + k]; for (int j = 0; j < 4 * U; ++j) r[j] += v * w[j]; }
            for (int g = 0; g < 4; ++g)
                for (int u = 0; u < U; ++u) a[g * U + u] = (a[g * U + u] + pb[(b * 4 + g) * 2 * U + u]) + (r[g * U + u] + pb[(b * 4 + g) * 2 * U + U + u]);
            for (int u = 0; u < U && b * U + u < H; ++u) {
                const int at = n * H + b * U + u;
                const float cell = sig(a[U + u]) * c[at] + sig(a[u]) * std::tanh(a[2 * U + u]);
                co[at] = cell;
                ho[at] = sig(a[3 * U + u]) * std::tanh(cell);
            }
        }
}
"""


def library(cache={}):
    if not cache:
        tag = hashlib.blake2b(SRC.encode(), digest_size=8).hexdigest()
        d = os.path.join(os.environ.get("TMPDIR", "/tmp"), "lstm-" + tag)
        os.makedirs(d, exist_ok=True)
        so = os.path.join(d, "lstm.so")
        if not os.path.exists(so):
            fd, tmp = tempfile.mkstemp(dir=d, suffix=".so")
            os.close(fd)
            subprocess.run(["g++", "-x", "c++", "-", "-O3", "-march=native", "-fopenmp", "-shared", "-fPIC", "-o", tmp], input=SRC.encode(), check=True)
            os.replace(tmp, so)
        cache["lib"] = ctypes.CDLL(so)
        P, I = ctypes.c_void_p, ctypes.c_int
        cache["lib"].lstm_pack.argtypes = [P] * 6 + [I] * 2
        cache["lib"].lstm_step.argtypes = [P] * 7 + [I] * 3
    return cache["lib"]


class Packed:
    """Weights in the kernel's order, and what they were made from."""

    def __init__(self):
        self.made_from = None

    def refresh(self, cell):
        sources = [cell.weight_ih, cell.weight_hh, cell.bias_ih, cell.bias_hh]
        now = [(s.data_ptr(), s._version) for s in sources]
        if now != self.made_from:
            hidden, inputs = cell.hidden_size, cell.input_size
            blocks = -(-hidden // 8)
            self.w = torch.empty(blocks * (inputs + hidden) * 32)
            self.b = torch.empty(blocks * 64)
            library().lstm_pack(*(s.data_ptr() for s in sources), self.w.data_ptr(), self.b.data_ptr(), inputs, hidden)
            self.made_from = now
        return self


_packs = weakref.WeakKeyDictionary()  # module -> Packed


class ModelNew(nn.Module):
    def __init__(self, inputs: int, hidden: int):
        super().__init__()
        self.cell = nn.LSTMCell(inputs, hidden)

    def forward(self, x, h, c):
        x, h, c = x.contiguous(), h.contiguous(), c.contiguous()
        pack = _packs.setdefault(self, Packed()).refresh(self.cell)
        ho, co = torch.empty_like(h), torch.empty_like(c)
        library().lstm_step(x.data_ptr(), h.data_ptr(), c.data_ptr(), pack.w.data_ptr(), pack.b.data_ptr(), ho.data_ptr(), co.data_ptr(),
                            x.shape[0], x.shape[1], h.shape[1])
        return ho, co
