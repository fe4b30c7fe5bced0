import ctypes, os, subprocess, tempfile
import torch
import torch.nn as nn

# Computational geometry, student style: a point class, one loop over the edges. No fused multiply-add: the sign of the
# orientation must round as in the reference.
SRC = r"""
#include <cstdint>
#include <vector>
struct Pt { float x, y; };
static inline float orient(Pt a, Pt b, Pt p) { return (b.x - a.x) * (p.y - a.y) - (p.x - a.x) * (b.y - a.y); }
extern "C" void pip(const Pt* pts, const Pt* poly, bool* inside, int64_t* crossings, int64_t B, int64_t P, int64_t V) {
    #pragma omp parallel for collapse(2) schedule(static)
    for (int64_t b = 0; b < B; b++)
        for (int64_t i = 0; i < P; i++) {
            const Pt p = pts[b * P + i];
            const Pt* v = poly + b * V;
            int32_t n = 0;
            for (int64_t e = 0; e + 1 < V; e++) {
                const Pt a = v[e], c = v[e + 1];
                const float s = orient(a, c, p);
                n += ((a.y <= p.y) & (c.y > p.y) & (s > 0)) | ((c.y <= p.y) & (a.y > p.y) & (s < 0));
            }
            const Pt a = v[V - 1], c = v[0];
            const float s = orient(a, c, p);
            n += ((a.y <= p.y) & (c.y > p.y) & (s > 0)) | ((c.y <= p.y) & (a.y > p.y) & (s < 0));
            inside[b * P + i] = n & 1;
            crossings[b * P + i] = n;
        }
}
"""
d = tempfile.mkdtemp()
with open(os.path.join(d, "pip.cpp"), "w") as f:
    f.write(SRC)
subprocess.check_call(["g++", "-O3", "-march=native", "-ffp-contract=off", "-fopenmp", "-shared", "-fPIC", "pip.cpp", "-o", "pip.so"], cwd=d)
pip = ctypes.CDLL(os.path.join(d, "pip.so")).pip
pip.argtypes = [ctypes.c_void_p] * 3 + [ctypes.c_void_p] + [ctypes.c_int64] * 3
pip.restype = None


class ModelNew(nn.Module):
    def forward(self, points, poly):
        assert points.dtype == poly.dtype == torch.float32 and points.shape[-1] == poly.shape[-1] == 2
        assert points.shape[0] == poly.shape[0] and poly.shape[1] >= 1
        points, poly = points.contiguous(), poly.contiguous()
        b, p, _ = points.shape
        inside = torch.empty(b, p, dtype=torch.bool)
        n = torch.empty(b, p, dtype=torch.int64)
        pip(points.data_ptr(), poly.data_ptr(), inside.data_ptr(), n.data_ptr(), b, p, poly.shape[1])
        return inside, n
