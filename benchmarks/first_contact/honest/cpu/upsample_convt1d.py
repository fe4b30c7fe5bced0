import torch
import torch.nn as nn
from torch.utils.cpp_extension import load_inline

# Gather form of the transposed convolution: output t = s * stride + k - pad, so a residue class of t is an ordinary
# correlation with kernel/stride taps. The weights are regrouped in every call (they are small).
CPP = r"""
#include <torch/extension.h>
#include <cmath>
#include <vector>
torch::Tensor up(torch::Tensor x_, torch::Tensor w_, torch::Tensor b_, torch::Tensor a_, int64_t stride, int64_t pad) {
    auto x = x_.contiguous(), w = w_.contiguous(), b = b_.contiguous(), a = a_.contiguous();
    TORCH_CHECK(x.scalar_type() == torch::kFloat && w.scalar_type() == torch::kFloat, "float32 only");
    const int64_t B = x.size(0), I = x.size(1), T = x.size(2), O = w.size(1), K = w.size(2);
    const int64_t L = (T - 1) * stride - 2 * pad + K;
    auto y = torch::empty({B, O, L}, x.options());
    const float *px = x.data_ptr<float>(), *pw = w.data_ptr<float>(), *pb = b.data_ptr<float>(), *pa = a.data_ptr<float>();
    float* py = y.data_ptr<float>();
    const int64_t margin = (K + stride - 1) / stride, TP = T + 2 * margin;
    std::vector<float> lx(B * I * TP, 0.f);
    for (int64_t r = 0; r < B * I; r++)
        for (int64_t t = 0; t < T; t++) { float v = px[r * T + t]; lx[r * TP + margin + t] = v > 0 ? v : v * 0.1f; }
    at::parallel_for(0, B * O, 1, [&](int64_t lo, int64_t hi) {
        std::vector<double> acc(TP + 1);
        for (int64_t bo = lo; bo < hi; bo++) {
            const int64_t n = bo / O, o = bo % O;
            float* out = py + bo * L;
            for (int64_t phase = 0; phase < stride; phase++) {
                const int64_t cnt = phase < L ? (L - phase + stride - 1) / stride : 0;
                std::fill(acc.begin(), acc.end(), 0.0);
                // t = phase + stride*j ; source s = (t + pad - k)/stride
                for (int64_t i = 0; i < I; i++)
                    for (int64_t k = (phase + pad) % stride; k < K; k += stride) {
                        const int64_t first = (phase + pad - k) / stride;      // exact division
                        const double ww = pw[(i * O + o) * K + k];
                        // clip, so that the padding never meets an infinite weight
                        const int64_t j0 = std::max<int64_t>(0, -first), j1 = std::min(cnt, T - first);
                        const float* src = &lx[(n * I + i) * TP + margin];
                        for (int64_t j = j0; j < j1; j++) acc[j] += ww * src[first + j];
                    }
                const double bias = pb[o], al = pa[o];
                bool far = false;
                for (int64_t j = 0; j < cnt; j++) far |= !(std::fabs(al * (acc[j] + bias)) < 1e6);
                if (far) {
                    for (int64_t j = 0; j < cnt; j++) { const double v = acc[j] + bias, s = std::sin(al * v); out[phase + stride * j] = float(v + s * s); }
                    continue;
                }
                // sin^2 has period pi: reduce, then a Taylor polynomial on [-pi/2, pi/2]
                for (int64_t j = 0; j < cnt; j++) {
                    const double v = acc[j] + bias, z = al * v * 0.31830988618379067;
                    const double n = (z + 6755399441055744.0) - 6755399441055744.0;
                    const double t = (z - n) * 3.141592653589793, q = t * t;
                    double p = -7.647163731819816e-13;
                    p = p * q + 1.605904383682161e-10;
                    p = p * q - 2.505210838544172e-8;
                    p = p * q + 2.755731922398589e-6;
                    p = p * q - 1.984126984126984e-4;
                    p = p * q + 8.333333333333333e-3;
                    p = p * q - 1.666666666666667e-1;
                    p = p * q + 1.0;
                    const double s = t * p;
                    acc[j] = v + s * s;
                }
                for (int64_t j = 0; j < cnt; j++) out[phase + stride * j] = float(acc[j]);
            }
        }
    });
    return y;
}
"""
mod = load_inline(name="snake_up_ext", cpp_sources=CPP, functions=["up"], extra_cflags=["-O3", "-march=native"])


class ModelNew(nn.Module):
    def __init__(self, cin, cout, kernel, stride):
        super().__init__()
        self.up = nn.ConvTranspose1d(cin, cout, kernel, stride, padding=(kernel - stride) // 2)
        self.alpha = nn.Parameter(torch.rand(cout, 1) + 0.5)

    def forward(self, x):
        u = self.up
        return mod.up(x, u.weight.detach(), u.bias.detach(), self.alpha.detach(), u.stride[0], u.padding[0])
