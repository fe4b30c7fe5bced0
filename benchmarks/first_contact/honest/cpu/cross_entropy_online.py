"""Cross entropy and argmax in one reading of each row: the sum is rescaled whenever a block brings a new maximum. Follows
torch: ignore_index -100, IndexError for targets out of range, the first NaN is the argmax."""
import ctypes
import subprocess
import tempfile

import torch
import torch.nn as nn

CODE = r"""
#include <cmath>
#include <cstdint>
#include <limits>

static inline float exp_(float x) {
    x = x < -105.f ? -105.f : x;
    float n = __builtin_rintf(x * 1.44269504f);
    float r = __builtin_fmaf(n, -0.693145752f, x);
    r = __builtin_fmaf(n, -1.42860677e-6f, r);
    float p = 1.9875691500e-4f;
    p = __builtin_fmaf(p, r, 1.3981999507e-3f);
    p = __builtin_fmaf(p, r, 8.3334519073e-3f);
    p = __builtin_fmaf(p, r, 4.1665795894e-2f);
    p = __builtin_fmaf(p, r, 1.6666665459e-1f);
    p = __builtin_fmaf(p, r, 5.0000001201e-1f);
    p = __builtin_fmaf(p, r * r, r) + 1.f;
    int k = (int)n, h = k >> 1;
    union { int32_t i; float f; } a, b;
    a.i = (h + 127) << 23; b.i = (k - h + 127) << 23;
    return p * a.f * b.f;
}

extern "C" int cross_entropy(const float* x, const int64_t* target, float* loss, int64_t* best, int64_t rows,
                             int64_t classes, int threads) {
    for (int64_t r = 0; r < rows; ++r)
        if (target[r] != -100 && (target[r] < 0 || target[r] >= classes)) return 1;
    constexpr float low = -std::numeric_limits<float>::infinity();
    constexpr int64_t B = 128;
#pragma omp parallel for num_threads(threads)
    for (int64_t r = 0; r < rows; ++r) {
        const float* in = x + r * classes;
        float top = low;
        double sum = 0;
        int64_t at = -1;                                  // block of the maximum
        bool nan = false;
        for (int64_t c = 0; c < classes; c += B) {
            const int64_t n = classes - c < B ? classes - c : B;
            float block[B], lane[16];
            for (float& l : lane) l = low;
            for (int64_t i = 0; i < n; ++i) block[i] = in[c + i];
            for (int64_t i = n; i < B; ++i) block[i] = low;
            bool odd = false;
            for (int64_t i = 0; i < B; ++i) odd |= block[i] != block[i];
            nan |= odd;
            for (int64_t i = 0; i < B; i += 16)
                for (int l = 0; l < 16; ++l) lane[l] = block[i + l] > lane[l] ? block[i + l] : lane[l];
            float m = low;
            for (float l : lane) m = l > m ? l : m;
            if (m > top || at < 0) {
                if (m > top && top > low) sum *= std::exp((double)top - m);
                if (m > top) { top = m; at = c; }
                else if (at < 0) at = 0;
            }
            if (top == low) continue;                     // nothing but -inf so far
            float part[16] = {};
            for (int64_t i = 0; i < B; i += 16)
                for (int l = 0; l < 16; ++l) part[l] += exp_(block[i + l] - top);
            for (float p : part) sum += p;
        }
        int64_t index = at < 0 ? 0 : at;
        if (nan) { index = 0; while (in[index] == in[index]) ++index; }
        else while (index + 1 < classes && in[index] != top) ++index;
        best[r] = index;
        const int64_t t = target[r];
        if (t == -100) { loss[r] = 0; continue; }
        if (nan || top == low) { loss[r] = std::numeric_limits<float>::quiet_NaN(); continue; }
        loss[r] = (float)(std::log(sum) - ((double)in[t] - top));
    }
    return 0;
}
"""


class Kernel:
    """A descriptor: the first access through any instance compiles."""
    function = None

    def __get__(self, instance, owner):
        if Kernel.function is None:
            so = tempfile.mkdtemp() + "/ce.so"
            subprocess.run(["g++", "-O3", "-march=native", "-fno-trapping-math", "-fopenmp", "-shared", "-fPIC", "-xc++", "-",
                            "-o", so], input=CODE.encode(), check=True)
            Kernel.function = ctypes.CDLL(so).cross_entropy
        return Kernel.function


class ModelNew(nn.Module):
    kernel = Kernel()

    def forward(self, logits, target):
        logits, target = logits.contiguous(), target.contiguous()
        loss = torch.empty(logits.shape[0])
        best = torch.empty(logits.shape[0], dtype=torch.int64)
        v = ctypes.c_void_p
        if self.kernel(v(logits.data_ptr()), v(target.data_ptr()), v(loss.data_ptr()), v(best.data_ptr()),
                       ctypes.c_int64(logits.shape[0]), ctypes.c_int64(logits.shape[1]), torch.get_num_threads()):
            raise IndexError("Target is out of bounds.")
        return loss, best
