import ctypes, os, subprocess, tempfile
import torch
import torch.nn as nn

# GPU habits on a CPU: atomic maximum on order-preserving integers, atomic adds of fixed order-insensitive doubles.
SRC = r"""
#include <atomic>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <memory>
static inline int32_t key(float f) {            // monotone in f; NaN above everything
    if (f != f) return INT32_MAX;
    int32_t i; std::memcpy(&i, &f, 4);
    return i < 0 ? (int32_t)(0x80000000u - (uint32_t)i) : i;
}
static inline float unkey(int32_t k) {
    if (k == INT32_MAX) return NAN;
    uint32_t u = k < 0 ? 0x80000000u - (uint32_t)k : (uint32_t)k;
    float f; std::memcpy(&f, &u, 4); return f;
}
extern "C" int segsoftmax(const float* x, const int64_t* g, float* y, int64_t E, int64_t H, int64_t G) {
    std::unique_ptr<std::atomic<int32_t>[]> top(new std::atomic<int32_t>[G * H]);
    std::unique_ptr<std::atomic<double>[]> sum(new std::atomic<double>[G * H]);
    int bad = 0;
    #pragma omp parallel
    {
        #pragma omp for
        for (int64_t i = 0; i < G * H; i++) { top[i].store(INT32_MIN, std::memory_order_relaxed); sum[i].store(0.0, std::memory_order_relaxed); }
        #pragma omp for reduction(|: bad)
        for (int64_t e = 0; e < E; e++) {
            if (g[e] < 0 || g[e] >= G) { bad |= 1; continue; }
            for (int64_t h = 0; h < H; h++) {
                auto& t = top[g[e] * H + h];
                int32_t k = key(x[e * H + h]), old = t.load(std::memory_order_relaxed);
                while (old < k && !t.compare_exchange_weak(old, k, std::memory_order_relaxed)) {}
            }
        }
        if (!bad) {
            #pragma omp for
            for (int64_t e = 0; e < E; e++)
                for (int64_t h = 0; h < H; h++) {
                    int64_t s = g[e] * H + h;
                    float v = std::exp(x[e * H + h] - unkey(top[s].load(std::memory_order_relaxed)));
                    y[e * H + h] = v;
                    double old = sum[s].load(std::memory_order_relaxed);
                    while (!sum[s].compare_exchange_weak(old, old + v, std::memory_order_relaxed)) {}
                }
            #pragma omp for
            for (int64_t e = 0; e < E; e++)
                for (int64_t h = 0; h < H; h++) y[e * H + h] = (float)(y[e * H + h] / sum[g[e] * H + h].load(std::memory_order_relaxed));
        }
    }
    return bad;
}
"""
d = tempfile.mkdtemp()
with open(d + "/seg.cpp", "w") as f:
    f.write(SRC)
subprocess.check_call(["g++", "-std=c++17", "-O3", "-march=native", "-fopenmp", "-shared", "-fPIC", d + "/seg.cpp", "-o", d + "/seg.so"])
seg = ctypes.CDLL(d + "/seg.so").segsoftmax
seg.argtypes = [ctypes.c_void_p] * 3 + [ctypes.c_int64] * 3


class ModelNew(nn.Module):
    def __init__(self, groups):
        super().__init__()
        self.groups = groups

    def forward(self, logits, group):
        assert logits.dtype == torch.float32 and group.dtype == torch.int64
        logits, group = logits.contiguous(), group.contiguous()
        out = torch.empty_like(logits)
        if seg(logits.data_ptr(), group.data_ptr(), out.data_ptr(), *logits.shape, self.groups):
            raise IndexError("group out of range")
        return out
