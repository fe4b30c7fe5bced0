import torch
import torch.nn as nn
from torch.utils.cpp_extension import load_inline

SRC = r"""
#include <torch/extension.h>
#include <vector>
#include <cmath>
#include <algorithm>
// Uniform grid over the cloud; a query looks at its own cell and the 26 around it. Clouds that do not fill the grid
// evenly, and queries that find nothing near, are searched completely.
static void nearest(const float* q, int nq, const float* p, int np, float* out) {
    float lo[3], hi[3];
    for (int d = 0; d < 3; d++) { lo[d] = INFINITY; hi[d] = -INFINITY; }
    for (int i = 0; i < np; i++) for (int d = 0; d < 3; d++) { lo[d] = std::min(lo[d], p[3 * i + d]); hi[d] = std::max(hi[d], p[3 * i + d]); }
    int R = std::max(1, (int)std::cbrt(np / 6.0));
    float ext = std::max(hi[0] - lo[0], std::max(hi[1] - lo[1], hi[2] - lo[2]));
    bool ok = ext > 0 && ext < 1e18f && R >= 3;
    float cell = ext / R, inv = 1.f / cell;
    std::vector<int> start, id(np), item(np); std::vector<float> s;
    auto at = [&](float v, int d) { int c = (int)((v - lo[d]) * inv); return c < 0 ? 0 : c >= R ? R - 1 : c; };
    if (ok) {
        start.assign(R * R * R + 1, 0);
        for (int i = 0; i < np; i++) { id[i] = (at(p[3 * i], 0) * R + at(p[3 * i + 1], 1)) * R + at(p[3 * i + 2], 2); start[id[i] + 1]++; }
        for (int c = 0; c < R * R * R; c++) { if (start[c + 1] > 40) ok = false; start[c + 1] += start[c]; }
        s.resize(3 * np);
        std::vector<int> pos(start.begin(), start.end() - 1);
        for (int i = 0; i < np; i++) { int k = pos[id[i]]++; for (int d = 0; d < 3; d++) s[3 * k + d] = p[3 * i + d]; }
    }
    #pragma omp parallel for
    for (int i = 0; i < nq; i++) {
        float x = q[3 * i], y = q[3 * i + 1], z = q[3 * i + 2], best = INFINITY;
        bool in = ok;
        if (in) for (int d = 0; d < 3; d++) in = in && q[3 * i + d] >= lo[d] - cell && q[3 * i + d] <= hi[d] + cell;
        if (in) {
            int cx = at(x, 0), cy = at(y, 1), cz = at(z, 2);
            for (int u = std::max(0, cx - 1); u <= std::min(R - 1, cx + 1); u++)
                for (int v = std::max(0, cy - 1); v <= std::min(R - 1, cy + 1); v++) {
                    int w0 = std::max(0, cz - 1), w1 = std::min(R - 1, cz + 1);
                    for (int k = start[(u * R + v) * R + w0]; k < start[(u * R + v) * R + w1 + 1]; k++) {
                        float a = x - s[3 * k], b = y - s[3 * k + 1], c = z - s[3 * k + 2];
                        best = std::min(best, a * a + b * b + c * c);
                    }
                }
            if (best > 3 * cell * cell) in = false;       // nothing within a cell's diagonal
        }
        if (!in) {
            best = INFINITY;
            for (int k = 0; k < np; k++) {
                float a = x - p[3 * k], b = y - p[3 * k + 1], c = z - p[3 * k + 2];
                best = std::min(best, a * a + b * b + c * c);
            }
        }
        out[i] = std::sqrt(best);
    }
}
std::vector<at::Tensor> chamfer(at::Tensor a, at::Tensor b) {
    a = a.contiguous(); b = b.contiguous();
    auto u = torch::empty({a.size(0)}, a.options()), v = torch::empty({b.size(0)}, a.options());
    nearest(a.data_ptr<float>(), a.size(0), b.data_ptr<float>(), b.size(0), u.data_ptr<float>());
    nearest(b.data_ptr<float>(), b.size(0), a.data_ptr<float>(), a.size(0), v.data_ptr<float>());
    return {u, v};
}
"""
ext = load_inline(name="b10a_chamfer", cpp_sources=SRC, functions=["chamfer"], extra_cflags=["-O3", "-march=native", "-fopenmp"], extra_ldflags=["-fopenmp"])


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()

    def forward(self, a, b):
        u, v = ext.chamfer(a, b)
        return u, v
