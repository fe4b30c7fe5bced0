import torch
import torch.nn as nn
from torch.utils.cpp_extension import load_inline

source = r"""
#include <torch/extension.h>
#include <ATen/Parallel.h>
#include <cmath>
#include <vector>

// Welford's update, lane by lane, lanes joined with Chan's formula.
template <typename T, int Lanes = 8>
struct Welford {
    double mean[Lanes] = {}, m2[Lanes] = {};
    long n[Lanes] = {};
    inline void add(int lane, T value) {
        n[lane] += 1;
        double d = value - mean[lane];
        mean[lane] += d / n[lane];
        m2[lane] += d * (value - mean[lane]);
    }
    std::pair<double, double> finish() const {
        double mu = 0, s = 0; long c = 0;
        for (int l = 0; l < Lanes; ++l) {
            if (!n[l]) continue;
            double d = mean[l] - mu;
            long total = c + n[l];
            mu += d * n[l] / total;
            s += m2[l] + d * d * ((double)c * n[l] / total);
            c = total;
        }
        return {mu, s / c};
    }
};

torch::Tensor add_layernorm(torch::Tensor x, torch::Tensor res, torch::Tensor w, torch::Tensor b, double eps) {
    TORCH_CHECK(x.is_contiguous() && res.is_contiguous(), "contiguous tensors please");
    TORCH_CHECK(x.sizes() == res.sizes(), "x and residual differ in shape");
    TORCH_CHECK(x.scalar_type() == torch::kFloat, "float32 please");
    auto y = torch::empty_like(x);
    const int64_t C = x.size(-1), R = x.numel() / C;
    const float *px = x.data_ptr<float>(), *pr = res.data_ptr<float>(), *pw = w.data_ptr<float>(), *pb = b.data_ptr<float>();
    float* py = y.data_ptr<float>();
    at::parallel_for(0, R, 8, [&](int64_t begin, int64_t end) {
        std::vector<float> row(C);
        for (int64_t r = begin; r < end; ++r) {
            Welford<float> stats;
            for (int64_t i = 0; i < C; ++i) {
                row[i] = px[r * C + i] + pr[r * C + i];
                stats.add(i & 7, row[i]);
            }
            auto [mu, var] = stats.finish();
            const double rstd = 1.0 / std::sqrt(var + eps);
            for (int64_t i = 0; i < C; ++i) py[r * C + i] = float((row[i] - mu) * rstd) * pw[i] + pb[i];
        }
    });
    return y;
}
"""

ext = load_inline(
    name="add_layernorm_welford",
    cpp_sources=source,
    functions=["add_layernorm"],
    extra_cflags=["-O3", "-march=native", "-fopenmp"],
    extra_ldflags=["-fopenmp"],
)


class ModelNew(nn.Module):
    def __init__(self, features: int):
        super().__init__()
        self.norm = nn.LayerNorm(features)

    def forward(self, x: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        n = self.norm
        return ext.add_layernorm(x.contiguous(), residual.contiguous(), n.weight, n.bias, n.eps)
