"""Bilineare Vergroesserung auf das Doppelte.

Jede Quellzeile wird einmal waagrecht gestreckt (Ringpuffer aus zwei Zeilen), dann senkrecht gemischt.
"""
import ctypes
import subprocess
import tempfile

import torch
import torch.nn as nn

QUELLE = r"""
#include <algorithm>
#include <array>
#include <cstdint>
#include <vector>
struct Gewicht { float links, rechts; };
// fuer gerade und ungerade Zielpunkte, vom Uebersetzer berechnet
constexpr std::array<Gewicht, 2> tafel = [] {
    std::array<Gewicht, 2> t{};
    for (int i = 0; i < 2; ++i) { float l = i == 0 ? 0.75f : 0.25f; t[i] = {1.f - l, l}; }
    return t;
}();
static_assert(tafel[0].links == 0.25f && tafel[1].rechts == 0.25f);

static void strecken(const float *x, float *z, long W) {
    z[0] = 1.f * x[0] + 0.f * x[std::min(1L, W - 1)];       // am Rand wie PyTorch: Gewicht 0 mal Nachbar
    for (long j = 0; j + 1 < W; ++j) {
        z[2 * j + 1] = tafel[1].links * x[j] + tafel[1].rechts * x[j + 1];
        z[2 * j + 2] = tafel[0].links * x[j] + tafel[0].rechts * x[j + 1];
    }
    z[2 * W - 1] = tafel[1].links * x[W - 1] + tafel[1].rechts * x[W - 1];
}
extern "C" void vergroessern(const float *x, float *y, long ebenen, long H, long W, int faeden) {
    #pragma omp parallel for num_threads(faeden)
    for (long e = 0; e < ebenen; ++e) {
        static thread_local std::vector<float> ring;
        ring.resize(4 * W);
        float *a = ring.data(), *b = a + 2 * W;
        const float *p = x + e * H * W; float *q = y + e * 4 * H * W;
        auto mischen = [W](const float *o, const float *u, float wo, float wu, float *ziel) {
            for (long j = 0; j < 2 * W; ++j) ziel[j] = wo * o[j] + wu * u[j];
        };
        strecken(p, a, W);
        strecken(p + std::min(1L, H - 1) * W, b, W);
        mischen(a, b, 1.f, 0.f, q);
        for (long i = 0; i + 1 < H; ++i) {
            if (i) { std::swap(a, b); strecken(p + (i + 1) * W, b, W); }
            mischen(a, b, tafel[1].links, tafel[1].rechts, q + (2 * i + 1) * 2 * W);
            mischen(a, b, tafel[0].links, tafel[0].rechts, q + (2 * i + 2) * 2 * W);
        }
        const float *l = H > 1 ? b : a;
        mischen(l, l, tafel[1].links, tafel[1].rechts, q + (2 * H - 1) * 2 * W);
    }
}
"""


class Bibliothek:
    def __enter__(self):
        self.ordner = tempfile.TemporaryDirectory()
        ziel = self.ordner.name + "/b.so"
        subprocess.run(["g++", "-std=c++20", "-O3", "-mavx2", "-fopenmp", "-shared", "-fPIC", "-xc++", "-", "-o", ziel],
                       input=QUELLE, encoding="utf-8", check=True)
        return ctypes.CDLL(ziel).vergroessern

    def __exit__(self, *_):
        self.ordner.cleanup()


with Bibliothek() as vergroessern:
    vergroessern.argtypes = [ctypes.c_void_p] * 2 + [ctypes.c_long] * 3 + [ctypes.c_int]


class ModelNew(nn.Module):
    def forward(self, x):
        x = x.contiguous()
        n, c, h, w = x.shape
        y = torch.empty(n, c, 2 * h, 2 * w)
        vergroessern(x.data_ptr(), y.data_ptr(), n * c, h, w, torch.get_num_threads())
        return y
