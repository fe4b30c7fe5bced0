# Log-Softmax über die mittlere Dimension: Der Speicher läuft entlang der Bildpunkte, also rechnen wir
# immer BREITE Bildpunkte nebeneinander und gehen dreimal über die Kanäle.
import ctypes
import os
import subprocess
import tempfile
import textwrap

import torch
import torch.nn as nn

QUELLE = textwrap.dedent(r"""
    #include <algorithm>
    #include <cmath>

    // Ein Block von W Spalten; W ist eine Konstante, damit der Übersetzer die Schleifen entrollt.
    template <int W>
    static void block(const float* ein, float* aus, long kanaele, long schritt, int gueltig) {
        float gross[W];
        double summe[W];
        for (int j = 0; j < W; ++j) { gross[j] = -INFINITY; summe[j] = 0.0; }
        for (long k = 0; k < kanaele; ++k)
            for (int j = 0; j < gueltig; ++j) {
                float v = ein[k * schritt + j];
                gross[j] = (v > gross[j]) ? v : gross[j];
            }
        for (long k = 0; k < kanaele; ++k)
            for (int j = 0; j < gueltig; ++j) summe[j] += std::exp(ein[k * schritt + j] - gross[j]);
        for (int j = 0; j < gueltig; ++j) summe[j] = std::log(summe[j]);
        for (long k = 0; k < kanaele; ++k)
            for (int j = 0; j < gueltig; ++j)
                aus[k * schritt + j] = (float)((double)(ein[k * schritt + j] - gross[j]) - summe[j]);
    }

    extern "C" void log_softmax(const float* ein, float* aus, long aussen, long kanaele, long innen) {
        constexpr int W = 32;
        const long bloecke = (innen + W - 1) / W;
        #pragma omp parallel for collapse(2)
        for (long a = 0; a < aussen; ++a)
            for (long b = 0; b < bloecke; ++b) {
                long start = a * kanaele * innen + b * W;
                block<W>(ein + start, aus + start, kanaele, innen, (int)std::min<long>(W, innen - b * W));
            }
    }
""")

_bibliothek = None


def bibliothek():
    global _bibliothek
    if _bibliothek is None:
        ordner = tempfile.mkdtemp()
        datei = os.path.join(ordner, "lsm.cpp")
        with open(datei, "w", encoding="utf-8") as f:
            f.write(QUELLE)
        ziel = datei[:-4] + ".so"
        subprocess.check_call(["g++", "-O3", "-march=native", "-fopenmp", "-fPIC", "-shared", datei, "-o", ziel])
        _bibliothek = ctypes.CDLL(ziel)
        _bibliothek.log_softmax.argtypes = [ctypes.c_void_p] * 2 + [ctypes.c_long] * 3
    return _bibliothek


class ModelNew(nn.Module):
    def __init__(self, dim: int):
        super().__init__()
        self.dim = dim

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x.contiguous()
        y = torch.empty_like(x)
        d = self.dim % x.dim()
        aussen, innen = 1, 1
        for n in x.shape[:d]:
            aussen *= n
        for n in x.shape[d + 1:]:
            innen *= n
        bibliothek().log_softmax(x.data_ptr(), y.data_ptr(), aussen, x.shape[d], innen)
        return y
