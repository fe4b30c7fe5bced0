"""RMS norm times SiLU(gate): C++20 concepts and a policy template, built lazily under functools.cache."""
from __future__ import annotations

import ctypes as C
import functools
import shutil
import subprocess
import tempfile
from pathlib import Path

import torch
from torch import Tensor, nn

HEADER = r"""
#pragma once
#include <concepts>
#include <cstddef>
#include <span>
#include <cmath>
#include <bit>
#include <cstdint>

template <class P>
concept Activation = requires(float v) { { P::of(v) } -> std::same_as<float>; };

template <class T>
concept Real = std::floating_point<T>;

struct Silu {
    [[gnu::always_inline]] static float of(float g) {
        // g / (1 + exp(-g)), without a branch, so that the loop vectorises
        float x = -g;
        float c = x > 88.8f ? 88.8f : x;
        c = c < -104.f ? -104.f : c;
        float t = c * 1.44269504f + 12582912.f;
        float n = t - 12582912.f;
        float r = c - n * 0.693359375f;
        r -= n * -2.12194440e-4f;
        float p = 1.9875691500e-4f;
        p = p * r + 1.3981999507e-3f;
        p = p * r + 8.3334519073e-3f;
        p = p * r + 4.1665795894e-2f;
        p = p * r + 1.6666665459e-1f;
        p = p * r + 5.0000001201e-1f;
        p = p * r * r + r + 1.f;
        int32_t k = std::bit_cast<int32_t>(t) - 0x4B400000;
        int32_t a = k >> 1, b = k - a;
        float e = p * std::bit_cast<float>((a + 127) << 23) * std::bit_cast<float>((b + 127) << 23);
        return g / (1.f + e);
    }
};

template <Real Acc, Activation A>
void row(std::span<const float> x, std::span<const float> g, std::span<const float> w, std::span<float> y, float eps) {
    const std::size_t n = x.size();
    Acc sum = 0;
    for (std::size_t j0 = 0; j0 < n; j0 += 128) {
        const std::size_t j1 = j0 + 128 < n ? j0 + 128 : n;
        float s = 0;
        #pragma omp simd reduction(+:s)
        for (std::size_t j = j0; j < j1; ++j) s += x[j] * x[j];
        sum += s;
    }
    const float inv = 1.f / std::sqrt(float(sum / Acc(n)) + eps);
    const float *px = x.data(), *pg = g.data(), *pw = w.data();
    float *py = y.data();
    #pragma omp simd
    for (std::size_t j = 0; j < n; ++j) py[j] = px[j] * inv * pw[j] * A::of(pg[j]);
}
"""

UNIT = r"""
#include "row.hpp"
extern "C" void rms_gate(const float *x, const float *g, const float *w, float *y, long rows, long n, float eps, int nt) {
    const std::size_t k = n;
    #pragma omp parallel for num_threads(nt)
    for (long i = 0; i < rows; ++i)
        row<double, Silu>({x + i * n, k}, {g + i * n, k}, {w, k}, {y + i * n, k}, eps);
}
"""


@functools.cache
def library() -> C.CDLL:
    folder = Path(tempfile.mkdtemp(prefix="rms_"))
    try:
        (folder / "row.hpp").write_text(HEADER)
        (folder / "unit.cpp").write_text(UNIT)
        subprocess.check_call(["g++", "-std=c++20", "-O3", "-mavx2", "-mfma", "-fno-math-errno", "-fno-trapping-math",
                               "-fopenmp", "-fPIC", "-shared", "unit.cpp", "-o", "unit.so"], cwd=folder)
        lib = C.CDLL(str(folder / "unit.so"))
    finally:
        shutil.rmtree(folder, ignore_errors=True)  # the mapping outlives the file
    p, n = C.c_void_p, C.c_long
    lib.rms_gate.argtypes = [p, p, p, p, n, n, C.c_float, C.c_int]
    lib.rms_gate.restype = None
    return lib


class ModelNew(nn.Module):
    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.rand(width) + 0.5)
        self.eps = eps

    def forward(self, x: Tensor, gate: Tensor) -> Tensor:
        if x.shape != gate.shape or x.dtype != torch.float32:
            raise ValueError(f"bad arguments: {tuple(x.shape)} {x.dtype}, {tuple(gate.shape)}")
        x, gate = x.contiguous(), gate.contiguous()
        y = torch.empty(x.shape)
        n = x.shape[-1]
        library().rms_gate(x.data_ptr(), gate.data_ptr(), self.weight.contiguous().data_ptr(), y.data_ptr(),
                           x.numel() // n, n, self.eps, torch.get_num_threads())
        return y
