"""DTW, plain dynamic programming. Eight sequences side by side in one vector (structure of arrays),
so that the serial recurrence runs in lanes. std::thread workers, joined before the call returns."""
import ctypes, os, subprocess, tempfile, torch
from torch import nn

SOURCE = r'''
#include <cmath>
#include <cstdint>
#include <limits>
#include <thread>
#include <vector>
constexpr int W = 8;
typedef float V __attribute__((vector_size(32), aligned(4)));
static inline V vmin(V x, V y) {           // NaN wins, like torch.minimum
    V r = x < y ? x : y;
    r = x != x ? x : r;
    return y != y ? y : r;
}
static void lane_group(const float* a, long n, const float* b, long m, long have, float* out) {
    std::vector<float> bt((m + 1) * W, 0.f), row((m + 1) * W);
    const float inf = std::numeric_limits<float>::infinity();
    for (long j = 0; j < m; ++j) for (long l = 0; l < have; ++l) bt[j * W + l] = b[l * m + j];
    V* D = (V*)row.data(); const V* B = (const V*)bt.data();
    const V vinf = {inf, inf, inf, inf, inf, inf, inf, inf};
    for (long j = 0; j <= m; ++j) D[j] = vinf;
    for (long i = 0; i < n; ++i) {
        V x = {};
        for (long l = 0; l < have; ++l) x[l] = a[l * n + i];
        V diag = D[0], left = vinf;
        if (i == 0) diag = V{};
        D[0] = vinf;
        for (long j = 0; j < m; ++j) {
            V c = x - B[j];
            c = (V)((__attribute__((vector_size(32))) int)c & 0x7fffffff);
            V up = D[j + 1];
            V best = (i == 0 && j == 0) ? V{} : vmin(vmin(left, up), diag);
            left = c + best;
            D[j + 1] = left;
            diag = up;
        }
    }
    for (long l = 0; l < have; ++l) out[l] = D[m][l];
}
extern "C" void dtw(const float* a, long n, const float* b, long m, float* out, long rows, long threads) {
    const long groups = (rows + W - 1) / W;
    if (threads > groups) threads = groups;
    if (threads < 1) threads = 1;
    auto work = [&](long t) {
        for (long g = t; g < groups; g += threads) {
            long r = g * W, have = rows - r < W ? rows - r : W;
            lane_group(a + r * n, n, b + r * m, m, have, out + r);
        }
    };
    std::vector<std::thread> pool;
    for (long t = 1; t < threads; ++t) pool.emplace_back(work, t);
    work(0);
    for (auto& t : pool) t.join();
}
'''
with tempfile.TemporaryDirectory() as tmp:
    cpp = os.path.join(tmp, "dtw.cpp")
    open(cpp, "w").write(SOURCE)
    subprocess.run(["g++", "-O2", "-march=native", "-pthread", "-shared", "-fPIC", "-Wno-psabi", cpp, "-o", tmp + "/dtw.so"], check=True)
    LIB = ctypes.CDLL(tmp + "/dtw.so")
L, P = ctypes.c_long, ctypes.c_void_p
LIB.dtw.argtypes = [P, L, P, L, P, L, L]


class ModelNew(nn.Module):
    def forward(self, a, b):
        if a.dtype != torch.float32 or b.dtype != torch.float32:
            raise TypeError("float32 only")
        a, b = a.contiguous(), b.contiguous()
        res = a.new_empty(a.shape[0])
        LIB.dtw(a.data_ptr(), a.shape[1], b.data_ptr(), b.shape[1], res.data_ptr(), a.shape[0], min(torch.get_num_threads(), 4))
        return res
