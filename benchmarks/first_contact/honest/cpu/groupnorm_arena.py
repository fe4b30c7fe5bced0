import ctypes
import subprocess
import tempfile
import os

import torch
import torch.nn as nn

CPP = r"""
#include <atomic>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <new>
#include <thread>
#include <vector>

// Bump allocator: reset at every call, memory kept by the process.
class Arena {
    std::unique_ptr<char[]> block_;
    size_t size_ = 0, used_ = 0;
public:
    void reset(size_t wanted) {
        if (wanted > size_) { block_.reset(new char[wanted + 64]); size_ = wanted; }
        used_ = 0;
    }
    template <class T> T* take(size_t n) {
        uintptr_t base = reinterpret_cast<uintptr_t>(block_.get());
        uintptr_t p = (base + used_ + 63) & ~uintptr_t(63);
        used_ = p - base + n * sizeof(T);
        if (used_ > size_ + 64) throw std::bad_alloc();
        return reinterpret_cast<T*>(p);
    }
};

struct Moments { double sum, sq; };

static void group(const float* x, float* y, const float* w, const float* b, int64_t per, int64_t hw, double eps, Moments* parts, int nparts) {
    const int64_t n = per * hw;
    // centred on the first element, which keeps the squares small when the values share an offset
    const double pivot = std::isfinite(x[0]) ? x[0] : 0.0;
    for (int k = 0; k < nparts; ++k) {
        double s = 0, q = 0;
        for (int64_t i = n * k / nparts; i < n * (k + 1) / nparts; ++i) { double d = x[i] - pivot; s += d; q += d * d; }
        parts[k] = {s, q};
    }
    double s = 0, q = 0;
    for (int k = 0; k < nparts; ++k) { s += parts[k].sum; q += parts[k].sq; }
    const double shift = s / n, mean = pivot + shift;
    double var = q / n - shift * shift;
    if (var < 0) var = 0;
    const double rstd = 1 / std::sqrt(var + eps);
    for (int64_t c = 0; c < per; ++c)
        for (int64_t i = c * hw; i < (c + 1) * hw; ++i) {
            float v = (float)((x[i] - mean) * rstd) * w[c] + b[c];
            y[i] = v * (1.0f / (1.0f + std::exp(-v)));
        }
}

extern "C" int groupnorm_swish(const float* x, float* y, const float* w, const float* b,
                               int64_t n, int64_t c, int64_t groups, int64_t hw, double eps, int workers) try {
    constexpr int PARTS = 16;
    static thread_local Arena arena;
    arena.reset(sizeof(Moments) * PARTS * workers + 64 * workers);
    std::vector<Moments*> scratch;
    for (int t = 0; t < workers; ++t) scratch.push_back(arena.take<Moments>(PARTS));
    std::atomic<int64_t> next{0};
    const int64_t per = c / groups;
    auto body = [&](int t) {
        for (int64_t g; (g = next.fetch_add(1, std::memory_order_relaxed)) < n * groups;) {
            const int64_t c0 = g % groups * per;
            group(x + g * per * hw, y + g * per * hw, w + c0, b + c0, per, hw, eps, scratch[t], PARTS);
        }
    };
    std::vector<std::thread> team;
    for (int t = 1; t < workers; ++t) team.emplace_back(body, t);
    body(0);
    for (auto& t : team) t.join();
    return 0;
} catch (...) { return 1; }
"""


def _open():
    d = tempfile.mkdtemp(prefix="gn_arena_")
    cpp = os.path.join(d, "gn.cpp")
    open(cpp, "w").write(CPP)
    subprocess.run(["g++", "-std=c++17", "-O3", "-march=native", "-pthread", "-shared", "-fPIC", "-o", d + "/gn.so", cpp], check=True)
    f = ctypes.CDLL(d + "/gn.so").groupnorm_swish
    f.argtypes = [ctypes.c_void_p] * 4 + [ctypes.c_int64] * 4 + [ctypes.c_double, ctypes.c_int]
    return f


groupnorm_swish = None


class ModelNew(nn.Module):
    def __init__(self, groups: int, channels: int):
        super().__init__()
        self.norm = nn.GroupNorm(groups, channels)

    def forward(self, x):
        global groupnorm_swish
        groupnorm_swish = groupnorm_swish or _open()
        x = x.contiguous()
        y = torch.empty_like(x)
        g = self.norm
        rc = groupnorm_swish(x.data_ptr(), y.data_ptr(), g.weight.data_ptr(), g.bias.data_ptr(), x.size(0), x.size(1), g.num_groups,
                             x[0, 0].numel(), g.eps, max(1, torch.get_num_threads()))
        if rc:
            raise MemoryError("no memory for the partial sums")
        return y
