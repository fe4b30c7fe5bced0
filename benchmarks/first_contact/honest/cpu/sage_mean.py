import ctypes, os, subprocess, tempfile
import torch
import torch.nn as nn

# Counting sort of the edges into CSR (stable, so sums are deterministic), then gather + two small GEMMs per block of nodes.
SRC = r"""
#include <cstdint>
#include <vector>
#include <cstring>
extern "C" int sage(const float* x, const int64_t* e, const float* wo, const float* bo, const float* wn, float* y,
                    int64_t N, int64_t E, int64_t D, int64_t O) {
    std::vector<int64_t> ptr(N + 1, 0), col(E);
    for (int64_t i = 0; i < E; i++) {
        int64_t s = e[i], t = e[E + i];
        if (s < 0 || s >= N || t < 0 || t >= N) return 1;
        ptr[t + 1]++;
    }
    for (int64_t i = 0; i < N; i++) ptr[i + 1] += ptr[i];
    {
        std::vector<int64_t> at(ptr.begin(), ptr.end() - 1);
        for (int64_t i = 0; i < E; i++) col[at[e[E + i]]++] = e[i];
    }
    std::vector<float> W(2 * D * O);                       // [2D][O]: input major, packed in every call
    for (int64_t o = 0; o < O; o++) for (int64_t d = 0; d < D; d++) {
        W[d * O + o] = wo[o * D + d];
        W[(D + d) * O + o] = wn[o * D + d];
    }
    #pragma omp parallel
    {
        constexpr int R = 4;
        std::vector<float> in(R * 2 * D), acc(R * O);
        #pragma omp for schedule(dynamic, 16)
        for (int64_t b = 0; b < (N + R - 1) / R; b++) {
            const int64_t n0 = b * R, have = N - n0 < R ? N - n0 : R;
            std::memset(in.data(), 0, sizeof(float) * in.size());
            for (int64_t r = 0; r < have; r++) {
                float* row = &in[r * 2 * D]; float* m = row + D;
                std::memcpy(row, x + (n0 + r) * D, sizeof(float) * D);
                const int64_t a = ptr[n0 + r], z = ptr[n0 + r + 1];
                for (int64_t k = a; k < z; k++) { const float* s = x + col[k] * D; for (int64_t d = 0; d < D; d++) m[d] += s[d]; }
                const float deg = z > a ? (float)(z - a) : 1.f;
                for (int64_t d = 0; d < D; d++) m[d] /= deg;
            }
            for (int r = 0; r < R; r++) std::memcpy(&acc[r * O], bo, sizeof(float) * O);
            for (int64_t d = 0; d < 2 * D; d++) {
                const float* w = &W[d * O];
                const float a0 = in[d], a1 = in[2 * D + d], a2 = in[4 * D + d], a3 = in[6 * D + d];
                float *c0 = &acc[0], *c1 = c0 + O, *c2 = c1 + O, *c3 = c2 + O;
                #pragma omp simd
                for (int64_t o = 0; o < O; o++) { c0[o] += a0 * w[o]; c1[o] += a1 * w[o]; c2[o] += a2 * w[o]; c3[o] += a3 * w[o]; }
            }
            for (int64_t r = 0; r < have; r++) for (int64_t o = 0; o < O; o++) { float v = acc[r * O + o]; y[(n0 + r) * O + o] = v < 0 ? 0.f : v; }
        }
    }
    return 0;
}
"""
d = tempfile.mkdtemp()
with open(d + "/s.cpp", "w") as f:
    f.write(SRC)
subprocess.check_call(["g++", "-O3", "-march=native", "-fopenmp", "-shared", "-fPIC", d + "/s.cpp", "-o", d + "/s.so"])
sage = ctypes.CDLL(d + "/s.so").sage
sage.argtypes = [ctypes.c_void_p] * 6 + [ctypes.c_int64] * 4


class ModelNew(nn.Module):
    def __init__(self, din, dout):
        super().__init__()
        self.own = nn.Linear(din, dout)
        self.neigh = nn.Linear(din, dout, bias=False)

    def forward(self, x, edges):
        assert x.dtype == torch.float32 and edges.dtype == torch.int64
        x, edges = x.contiguous(), edges.contiguous()
        wo, bo, wn = (p.detach().contiguous() for p in (self.own.weight, self.own.bias, self.neigh.weight))
        y = x.new_empty(x.shape[0], wo.shape[0])
        if sage(x.data_ptr(), edges.data_ptr(), wo.data_ptr(), bo.data_ptr(), wn.data_ptr(), y.data_ptr(),
                x.shape[0], edges.shape[1], x.shape[1], wo.shape[0]):
            raise IndexError("edge out of range")
        return y
