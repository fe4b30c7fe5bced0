import ctypes as C
import pathlib
import subprocess
import tempfile

import torch

SRC = r"""
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <thread>
#include <vector>

// torch.topk puts NaN first
static bool before(float a, float b) { return (std::isnan(a) && !std::isnan(b)) || a > b; }

extern "C" void kth_mask(const float* x, uint8_t* mask, float* sums, int64_t rows, int64_t cols, int64_t k) {
    auto work = [=](int64_t lo, int64_t hi) {
        std::vector<float> tmp(cols);
        for (int64_t r = lo; r < hi; ++r) {
            const float* p = x + r * cols;
            std::copy(p, p + cols, tmp.begin());
            std::nth_element(tmp.begin(), tmp.begin() + (k - 1), tmp.end(), before);
            const float kth = tmp[k - 1];
            float s = 0;
            for (int64_t i = 0; i < cols; ++i) {
                const bool in = p[i] >= kth;
                mask[r * cols + i] = in;
                if (in) s += p[i];
            }
            sums[r] = s;
        }
    };
    const int64_t n = std::max<int64_t>(1, std::min<int64_t>(std::thread::hardware_concurrency(), rows));
    std::vector<std::thread> pool;
    for (int64_t t = 1; t < n; ++t) pool.emplace_back(work, rows * t / n, rows * (t + 1) / n);
    work(0, rows / n);
    for (auto& t : pool) t.join();
}
"""


def build(source: str) -> C.CDLL:
    folder = pathlib.Path(tempfile.mkdtemp())
    (folder / "k.cpp").write_text(source)
    subprocess.run(["g++", "-std=c++17", "-O3", "-shared", "-fPIC", "-pthread", "k.cpp", "-o", "k.so"], cwd=folder, check=True)
    return C.CDLL(str(folder / "k.so"))


class ModelNew(torch.nn.Module):
    K = 12

    def __init__(self):
        super().__init__()
        self.lib = build(SRC)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x = x.contiguous()
        mask = torch.empty(x.shape, dtype=torch.bool)
        sums = torch.empty(x.shape[:-1])
        n, c = x.shape
        self.lib.kth_mask(*(C.c_void_p(t.data_ptr()) for t in (x, mask, sums)), C.c_int64(n), C.c_int64(c), C.c_int64(self.K))
        return mask, sums
