# -*- coding: utf-8 -*-
"""Log-softmax à température : un seul passage d'arguments par structure C.

Les commentaires sont en français parce que leur auteur l'est.
"""
import ctypes
import fcntl
import hashlib
import os
import pathlib
import subprocess
import tempfile

import torch
from torch import nn

SOURCE = r"""
#include <cmath>
#include <cstdint>
#include <limits>

struct Travail {            // miroir de la structure ctypes
    const float *entree;
    float *sortie;
    const float *log_tau;
    int64_t lignes, colonnes;
    int32_t fils;
    int32_t etat;
};

// exp() vectorisable ; deux facteurs pour garder les dénormaux
static inline float expo(float x) {
    float c = x > 88.8f ? 88.8f : x;
    c = c < -104.f ? -104.f : c;
    float t = c * 1.44269504088896341f + 12582912.f;
    float n = t - 12582912.f;
    float r = c - n * 0.693359375f;
    r = r - n * -2.12194440e-4f;
    float p = 1.9875691500e-4f;
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * r * r + r + 1.f;
    union { float f; int32_t i; } u, a, b;
    u.f = t;
    int32_t k = u.i - 0x4B400000;
    int32_t k1 = k >> 1, k2 = k - k1;
    a.i = (k1 + 127) << 23;
    b.i = (k2 + 127) << 23;
    return p * a.f * b.f;
}

extern "C" void log_softmax(Travail *w) {
    const float inv = std::exp(-w->log_tau[0]);
    const int64_t n = w->colonnes;
    #pragma omp parallel for schedule(static) num_threads(w->fils)
    for (int64_t l = 0; l < w->lignes; ++l) {
        const float *x = w->entree + l * n;
        float *y = w->sortie + l * n;
        float m = -std::numeric_limits<float>::infinity();
        #pragma omp simd reduction(max:m)
        for (int64_t j = 0; j < n; ++j) {
            float v = x[j] * inv;
            y[j] = v;
            m = v > m ? v : m;
        }
        double total = 0;
        for (int64_t j0 = 0; j0 < n; j0 += 256) {
            const int64_t j1 = j0 + 256 < n ? j0 + 256 : n;
            float s = 0;
            #pragma omp simd reduction(+:s)
            for (int64_t j = j0; j < j1; ++j) s += expo(y[j] - m);
            total += s;
        }
        const float lse = (float)std::log(total);
        #pragma omp simd
        for (int64_t j = 0; j < n; ++j) y[j] = (y[j] - m) - lse;
    }
    w->etat = 1;
}
"""


class Travail(ctypes.Structure):
    _fields_ = [
        ("entree", ctypes.c_void_p),
        ("sortie", ctypes.c_void_p),
        ("log_tau", ctypes.c_void_p),
        ("lignes", ctypes.c_int64),
        ("colonnes", ctypes.c_int64),
        ("fils", ctypes.c_int32),
        ("etat", ctypes.c_int32),
    ]


def construire():
    drapeaux = ["-O3", "-mavx2", "-mfma", "-fopenmp", "-fno-math-errno", "-fno-trapping-math", "-shared", "-fPIC"]
    empreinte = hashlib.sha256((SOURCE + " ".join(drapeaux)).encode()).hexdigest()[:20]
    dossier = pathlib.Path(tempfile.gettempdir()) / f"noyaux-{os.getuid()}"
    dossier.mkdir(parents=True, exist_ok=True)
    cible = dossier / f"lsm_{empreinte}.so"
    with open(dossier / f"lsm_{empreinte}.verrou", "w") as verrou:
        fcntl.flock(verrou, fcntl.LOCK_EX)  # deux processus, une seule compilation
        if not cible.exists():
            brouillon = cible.with_suffix(".tmp")
            subprocess.run(["g++", *drapeaux, "-x", "c++", "-", "-o", str(brouillon)], input=SOURCE.encode(), check=True)
            os.replace(brouillon, cible)
    bib = ctypes.CDLL(str(cible))
    bib.log_softmax.argtypes = [ctypes.POINTER(Travail)]
    bib.log_softmax.restype = None
    return bib


BIB = construire()


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        self.log_tau = nn.Parameter(torch.tensor([0.3]))

    def forward(self, x):
        x = x.contiguous()
        y = torch.empty_like(x)
        w = Travail(x.data_ptr(), y.data_ptr(), self.log_tau.data_ptr(), x.numel() // x.shape[-1], x.shape[-1],
                    torch.get_num_threads(), 0)
        BIB.log_softmax(ctypes.byref(w))
        if w.etat != 1:
            raise RuntimeError("le noyau n'a pas terminé")
        return y
