import ctypes
import os
import subprocess
import tempfile
import weakref

import torch
from torch import nn

# A C++ object behind an opaque pointer; it is destroyed with the module.
CODE = r"""
#include <cstdint>
#include <memory>
#include <limits>
class EdgeMax {
  public:
    explicit EdgeMax(int64_t features) : f(features) {}
    bool run(const float* x, const int64_t* nb, const float* slope, float* out, int64_t n, int64_t rows, int64_t k) const {
        int bad = 0;
#pragma omp parallel for schedule(static) reduction(| : bad)
        for (int64_t i = 0; i < rows; i++) {
            const float* __restrict self = x + i * f;
            float* __restrict o = out + i * f;
            for (int64_t c = 0; c < f; c++) o[c] = -std::numeric_limits<float>::infinity();
            for (int64_t e = 0; e < k; e++) {
                int64_t j = nb[i * k + e];
                if (j < 0) j += n;
                if (j < 0 || j >= n) { bad = 1; continue; }
                const float* __restrict other = x + j * f;
                for (int64_t c = 0; c < f; c++) {
                    float d = other[c] - self[c], m = o[c];
                    d = d > m ? d : (d != d ? d : m);
                    o[c] = m != m ? m : d;
                }
            }
            for (int64_t c = 0; c < f; c++) o[c] = o[c] > 0.f ? o[c] : o[c] * slope[c];
        }
        return !bad;
    }
  private:
    int64_t f;
};
extern "C" {
EdgeMax* edge_new(int64_t f) { return std::make_unique<EdgeMax>(f).release(); }
void edge_delete(EdgeMax* e) { std::unique_ptr<EdgeMax> gone(e); }
int edge_run(EdgeMax* e, const float* x, const int64_t* nb, const float* s, float* o, int64_t n, int64_t rows, int64_t k) { return e->run(x, nb, s, o, n, rows, k); }
}
"""


def shared_object(code):
    folder = tempfile.mkdtemp()
    with open(os.path.join(folder, "edge.cc"), "w") as f:
        f.write(code)
    out = os.path.join(folder, "edge.so")
    subprocess.run(["g++", "-std=c++17", "-O3", "-march=native", "-fno-trapping-math", "-fopenmp", "-shared", "-fPIC", "-o", out, os.path.join(folder, "edge.cc")], check=True)
    lib = ctypes.CDLL(out)
    lib.edge_new.restype = ctypes.c_void_p
    lib.edge_new.argtypes = [ctypes.c_int64]
    lib.edge_delete.argtypes = [ctypes.c_void_p]
    lib.edge_run.argtypes = [ctypes.c_void_p] * 5 + [ctypes.c_int64] * 3
    return lib


class ModelNew(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.act = nn.PReLU(features)
        self.lib = shared_object(CODE)
        self.object = self.lib.edge_new(features)
        weakref.finalize(self, self.lib.edge_delete, self.object)

    def forward(self, x, neighbours):
        x, neighbours = x.contiguous(), neighbours.contiguous()
        out = torch.empty(neighbours.shape[0], x.shape[1])
        if neighbours.shape[0] != x.shape[0]:
            raise ValueError("one row of neighbours per node")
        fine = self.lib.edge_run(self.object, x.data_ptr(), neighbours.data_ptr(), self.act.weight.data_ptr(), out.data_ptr(), x.shape[0], *neighbours.shape)
        if not fine:
            raise IndexError("neighbour out of range")
        return out
