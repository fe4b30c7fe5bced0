"""Biquad filter bank, transposed direct form II, through torch.utils.cpp_extension.load_inline."""
import torch
import torch.nn as nn
from torch.utils.cpp_extension import load_inline

CPP = r"""
#include <torch/extension.h>
#include <tuple>
std::tuple<at::Tensor, at::Tensor> biquad(at::Tensor x, at::Tensor state, at::Tensor b, at::Tensor a) {
    TORCH_CHECK(x.dim() == 3 && x.scalar_type() == at::kFloat, "x must be float32 (T, B, C)");
    const int64_t T = x.size(0), B = x.size(1), C = x.size(2), N = B * C;
    TORCH_CHECK(T > 0, "no samples");
    TORCH_CHECK(state.scalar_type() == at::kFloat && state.sizes() == at::IntArrayRef({2, B, C}), "state must be float32 (2, B, C)");
    TORCH_CHECK(b.sizes() == at::IntArrayRef({3, C}) && a.sizes() == at::IntArrayRef({2, C}), "coefficients per channel");
    x = x.contiguous(); b = b.contiguous(); a = a.contiguous();
    at::Tensor y = at::empty({T, B, C}, x.options());
    at::Tensor z = at::empty({2, B, C}, x.options());
    z.copy_(state);
    const float *px = x.const_data_ptr<float>(), *pb = b.const_data_ptr<float>(), *pa = a.const_data_ptr<float>();
    float *py = y.mutable_data_ptr<float>(), *z1 = z.mutable_data_ptr<float>(), *z2 = z1 + N;
    for (int64_t t = 0; t < T; ++t)
        for (int64_t r = 0; r < B; ++r) {
            const int64_t o = r * C;
            const float* xi = px + t * N + o; float* yo = py + t * N + o; float *s1 = z1 + o, *s2 = z2 + o;
            #pragma omp simd
            for (int64_t c = 0; c < C; ++c) {
                const float v = xi[c], w = pb[c] * v + s1[c];
                s1[c] = pb[C + c] * v - pa[c] * w + s2[c];
                s2[c] = pb[2 * C + c] * v - pa[C + c] * w;
                yo[c] = w;
            }
        }
    return {y, z};
}
"""

native = load_inline(name="biquad_inline_native", cpp_sources=CPP, functions=["biquad"],
                     extra_cflags=["-O3", "-march=native", "-fopenmp-simd"])

class ModelNew(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.b = nn.Parameter(torch.randn(3, channels) * 0.3)
        self.a = nn.Parameter(torch.rand(2, channels) * 0.4 - 0.2)

    def forward(self, x, state):
        return native.biquad(x, state, self.b.detach(), self.a.detach())
