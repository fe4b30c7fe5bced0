"""LayerNorm(x + residual) in two variants; the CPU decides at run time which one it gets.

The object is compiled for plain x86-64, so the same .so could be shipped: every variant carries its own
`target` attribute and `__builtin_cpu_supports` picks one when the library is loaded.
"""
import atexit
import ctypes as ct
import os
import shutil
import subprocess
import tempfile
import threading

import torch
import torch.nn as nn

_SRC = r"""
#include <immintrin.h>
#include <math.h>
#include <stdint.h>

typedef void (*row_fn)(const float*, const float*, const float*, const float*, float*, int64_t, double);

static void row_plain(const float* a, const float* r, const float* w, const float* b, float* y, int64_t n, double eps) {
    double s = 0, q = 0;
    for (int64_t i = 0; i < n; ++i) { y[i] = a[i] + r[i]; s += y[i]; }
    const double mean = s / n;
    for (int64_t i = 0; i < n; ++i) { double d = y[i] - mean; q += d * d; }
    const double k = 1.0 / sqrt(q / n + eps);
    for (int64_t i = 0; i < n; ++i) y[i] = (float)((y[i] - mean) * k) * w[i] + b[i];
}

__attribute__((target("avx512f")))
static void row_512(const float* a, const float* r, const float* w, const float* b, float* y, int64_t n, double eps) {
    __m512d s0 = _mm512_setzero_pd(), s1 = s0;
    int64_t i = 0;
    for (; i + 16 <= n; i += 16) {
        __m512 v = _mm512_add_ps(_mm512_loadu_ps(a + i), _mm512_loadu_ps(r + i));
        _mm512_storeu_ps(y + i, v);
        s0 = _mm512_add_pd(s0, _mm512_cvtps_pd(_mm512_castps512_ps256(v)));
        s1 = _mm512_add_pd(s1, _mm512_cvtps_pd(_mm256_castpd_ps(_mm512_extractf64x4_pd(_mm512_castps_pd(v), 1))));
    }
    double s = _mm512_reduce_add_pd(_mm512_add_pd(s0, s1));
    for (; i < n; ++i) { y[i] = a[i] + r[i]; s += y[i]; }
    const double mean = s / n;
    const __m512d vm = _mm512_set1_pd(mean);
    __m512d q0 = _mm512_setzero_pd();
    for (i = 0; i + 8 <= n; i += 8) {
        __m512d d = _mm512_sub_pd(_mm512_cvtps_pd(_mm256_loadu_ps(y + i)), vm);
        q0 = _mm512_fmadd_pd(d, d, q0);
    }
    double q = _mm512_reduce_add_pd(q0);
    for (; i < n; ++i) { double d = y[i] - mean; q += d * d; }
    const double k = 1.0 / sqrt(q / n + eps);
    const __m512d vk = _mm512_set1_pd(k);
    for (i = 0; i + 8 <= n; i += 8) {
        __m256 t = _mm512_cvtpd_ps(_mm512_mul_pd(_mm512_sub_pd(_mm512_cvtps_pd(_mm256_loadu_ps(y + i)), vm), vk));
        _mm256_storeu_ps(y + i, _mm256_add_ps(_mm256_mul_ps(t, _mm256_loadu_ps(w + i)), _mm256_loadu_ps(b + i)));
    }
    for (; i < n; ++i) y[i] = (float)((y[i] - mean) * k) * w[i] + b[i];
}

static row_fn chosen = row_plain;
static const char* chosen_name = "plain";

__attribute__((constructor)) static void choose(void) {
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx512f")) { chosen = row_512; chosen_name = "avx512f"; }
}

extern "C" const char* ln_variant(void) { return chosen_name; }

extern "C" void ln_forward(const float* a, const float* r, const float* w, const float* b, float* y,
                           int64_t rows, int64_t n, double eps, int threads) {
    #pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t i = 0; i < rows; ++i) chosen(a + i * n, r + i * n, w, b, y + i * n, n, eps);
}
"""

_lock = threading.Lock()
_state: dict = {}


def _lib() -> ct.CDLL:
    with _lock:
        if "lib" not in _state:
            d = tempfile.mkdtemp(prefix="ln_dispatch_")
            atexit.register(shutil.rmtree, d, ignore_errors=True)
            src, so = os.path.join(d, "ln.cpp"), os.path.join(d, "ln.so")
            with open(src, "w") as fh:
                fh.write(_SRC)
            subprocess.check_output(["g++", "-O3", "-fopenmp", "-shared", "-fPIC", "-o", so, src], stderr=subprocess.STDOUT)
            lib = ct.CDLL(so)
            lib.ln_variant.restype = ct.c_char_p
            lib.ln_forward.restype = None
            lib.ln_forward.argtypes = [ct.c_void_p] * 5 + [ct.c_int64, ct.c_int64, ct.c_double, ct.c_int]
            _state["lib"] = lib
    return _state["lib"]


class ModelNew(nn.Module):
    def __init__(self, features: int):
        super().__init__()
        self.norm = nn.LayerNorm(features)

    def extra_repr(self) -> str:
        return "variant=" + _lib().ln_variant().decode()

    def forward(self, x: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        x, residual = x.contiguous(), residual.contiguous()
        assert x.shape == residual.shape and x.dtype == torch.float32
        out = torch.empty_like(x)
        n = x.size(-1)
        _lib().ln_forward(x.data_ptr(), residual.data_ptr(), self.norm.weight.data_ptr(), self.norm.bias.data_ptr(),
                          out.data_ptr(), x.numel() // n, n, self.norm.eps, torch.get_num_threads())
        return out
