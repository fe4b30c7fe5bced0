import torch
import torch.nn as nn
from torch.utils.cpp_extension import load_inline

SRC = r"""
#include <map>
#include <tuple>
#include <vector>
#include <cmath>
#include <cstring>
// weights are packed once for each state of the parameters (address and version)
typedef std::tuple<const void*, const void*, const void*, const void*, int64_t> Key;
static std::map<Key, std::vector<float>> packs;
static std::vector<float>& packed(const torch::Tensor& wi, const torch::Tensor& wh, const torch::Tensor& bi, const torch::Tensor& bh) {
  Key k(wi.data_ptr(), wh.data_ptr(), bi.data_ptr(), bh.data_ptr(), wi._version() + 1000 * (wh._version() + 1000 * (bi._version() + 1000 * (int64_t)bh._version())));
  auto f = packs.find(k);
  if (f != packs.end()) return f->second;
  const int64_t H = wi.size(0), I = wi.size(1);
  auto& p = packs[k]; p.resize((I + H + 1) * H);
  const float *a = wi.data_ptr<float>(), *b = wh.data_ptr<float>(), *c = bi.data_ptr<float>(), *d = bh.data_ptr<float>();
  for (int64_t h = 0; h < H; h++) {
    for (int64_t i = 0; i < I; i++) p[i * H + h] = a[h * I + i];
    for (int64_t i = 0; i < H; i++) p[(I + i) * H + h] = b[h * H + i];
    p[(I + H) * H + h] = c[h] + d[h];
  }
  return p;
}
torch::Tensor elman(torch::Tensor x, torch::Tensor wi, torch::Tensor wh, torch::Tensor bi, torch::Tensor bh) {
  const int64_t T = x.size(0), B = x.size(1), I = x.size(2), H = wi.size(0);
  const float* p = packed(wi, wh, bi, bh).data();
  auto out = torch::empty({T, B, H}, x.options());
  float* o = out.data_ptr<float>(); const float* xp = x.data_ptr<float>();
  #pragma omp parallel for
  for (int64_t b = 0; b < B; b++) {
    std::vector<float> acc(H);
    float* s = acc.data();
    for (int64_t t = 0; t < T; t++) {
      std::memcpy(s, p + (I + H) * H, H * sizeof(float));
      const float* v = xp + (t * B + b) * I;
      for (int64_t i = 0; i < I; i += 1) { const float* w = p + i * H; const float e = v[i]; for (int64_t h = 0; h < H; h++) s[h] += e * w[h]; }
      if (t) {
        const float* q = o + ((t - 1) * B + b) * H;
        for (int64_t i = 0; i < H; i++) { const float* w = p + (I + i) * H; const float e = q[i]; for (int64_t h = 0; h < H; h++) s[h] += e * w[h]; }
      }
      float* y = o + (t * B + b) * H;
      for (int64_t h = 0; h < H; h++) y[h] = std::tanh(s[h]);
    }
  }
  return out;
}
"""
ext = load_inline("b10_elman", [SRC], functions=["elman"],
                  extra_cflags=["-O3", "-march=native", "-fopenmp", "-ffast-math"], extra_ldflags=["-fopenmp"])


class ModelNew(nn.Module):
    def __init__(self, inputs=64, hidden=128):
        super().__init__()
        self.rnn = nn.RNN(inputs, hidden)

    def forward(self, x):
        r = self.rnn
        return ext.elman(x.contiguous(), r.weight_ih_l0, r.weight_hh_l0, r.bias_ih_l0, r.bias_hh_l0)
