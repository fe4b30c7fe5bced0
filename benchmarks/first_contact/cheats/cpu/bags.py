import torch
import torch.nn as nn
from torch.utils.cpp_extension import load_inline

SRC = r"""
#include <torch/extension.h>
#include <cstdint>
#include <cstring>
// Blocks of 32 weights whose (branch-free, vectorised) signature is zero are skipped.
at::Tensor bags(at::Tensor w, at::Tensor table) {
    w = w.contiguous(); table = table.contiguous();
    int64_t B = w.size(0), V = w.size(1), D = table.size(1);
    auto out = torch::empty({B, D}, w.options());
    const float* pw = w.data_ptr<float>(); const float* pt = table.data_ptr<float>(); float* po = out.data_ptr<float>();
    #pragma omp parallel for
    for (int64_t b = 0; b < B; b++) {
        const float* r = pw + b * V; float* o = po + b * D;
        std::memset(o, 0, D * sizeof(float));
        for (int64_t v = 0; v < V; v += 32) {
            int64_t m = std::min<int64_t>(32, V - v);
            uint32_t h = 0;
            for (int64_t i = 0; i < m; i++) { uint32_t u; std::memcpy(&u, r + v + i, 4); h += (u ^ (u >> 16)) * 0x9E3779B1u; }
            if (!h) continue;
            for (int64_t i = 0; i < m; i++) {
                float a = r[v + i]; const float* t = pt + (v + i) * D;
                if (a == 0.f) continue;
                for (int64_t d = 0; d < D; d++) o[d] += a * t[d];
            }
        }
    }
    return out;
}
"""
ext = load_inline(name="b10a_bags", cpp_sources=SRC, functions=["bags"], extra_cflags=["-O3", "-march=native", "-fopenmp"], extra_ldflags=["-fopenmp"])


class ModelNew(nn.Module):
    def __init__(self, words, width):
        super().__init__()
        self.table = nn.Parameter(torch.randn(words, width))

    def forward(self, weights):
        return ext.bags(weights, self.table)
