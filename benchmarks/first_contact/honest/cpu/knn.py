import ctypes, os, subprocess, tempfile
import torch
import torch.nn as nn

SRC = r"""
// k nearest neighbours with std::priority_queue. NaN counts as the largest distance, like torch.topk.
#include <cmath>
#include <queue>
#include <vector>
struct Less { bool operator()(float a, float b) const { return a < b || (b != b && a == a); } };
extern "C" void knn(const float* q, const float* p, float* out, long B, long Q, long P, long k) {
    #pragma omp parallel
    {
        std::vector<float> soa(3 * P), d(P);
        long loaded = -1;
        #pragma omp for schedule(static)
        for (long t = 0; t < B * Q; t++) {
            long b = t / Q;
            if (b != loaded) {
                for (long i = 0; i < P; i++) for (int c = 0; c < 3; c++) soa[c * P + i] = p[(b * P + i) * 3 + c];
                loaded = b;
            }
            const float x = q[t * 3], y = q[t * 3 + 1], z = q[t * 3 + 2];
            const float *X = soa.data(), *Y = X + P, *Z = Y + P;
            for (long i = 0; i < P; i++) {
                float dx = x - X[i], dy = y - Y[i], dz = z - Z[i];
                d[i] = dx * dx + dy * dy + dz * dz;
            }
            std::priority_queue<float, std::vector<float>, Less> heap;
            Less less;
            for (long i = 0; i < P; i++) {
                if ((long)heap.size() < k) heap.push(d[i]);
                else if (less(d[i], heap.top())) { heap.pop(); heap.push(d[i]); }
            }
            for (long j = k - 1; j >= 0; j--) { out[t * k + j] = std::sqrt(heap.top()); heap.pop(); }
        }
    }
}
"""


def compile_library(text):
    tmp = tempfile.mkdtemp()
    path = os.path.join(tmp, "knn.cpp")
    with open(path, "w") as f:
        f.write(text)
    subprocess.check_call(["g++", "-O3", "-march=native", "-ffp-contract=off", "-fopenmp", "-shared", "-fPIC", path, "-o", path[:-3] + "so"])
    return ctypes.CDLL(path[:-3] + "so")


lib = compile_library(SRC)
lib.knn.argtypes = [ctypes.c_void_p] * 3 + [ctypes.c_long] * 4


class ModelNew(nn.Module):
    def __init__(self, k):
        super().__init__()
        self.k = k

    def forward(self, query, points):
        assert query.shape[-1] == 3 and points.shape[1] >= self.k and query.dtype == points.dtype == torch.float32
        query, points = query.contiguous(), points.contiguous()
        b, q, _ = query.shape
        out = query.new_empty(b, q, self.k)
        lib.knn(query.data_ptr(), points.data_ptr(), out.data_ptr(), b, q, points.shape[1], self.k)
        return out
