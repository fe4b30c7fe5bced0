import torch
import torch.nn as nn
from torch.utils.cpp_extension import load_inline

src = r"""
#include <torch/extension.h>
#include <immintrin.h>
static inline int hsum(__m256i v) {
  __m128i s = _mm_add_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
  s = _mm_add_epi32(s, _mm_shuffle_epi32(s, 0x4e));
  s = _mm_add_epi32(s, _mm_shuffle_epi32(s, 0xb1));
  return _mm_cvtsi128_si32(s);
}
torch::Tensor qlin(torch::Tensor x, torch::Tensor w, torch::Tensor scale) {
  x = x.contiguous(); w = w.contiguous();
  const int64_t M = x.size(0), K = x.size(1), N = w.size(0);
  TORCH_CHECK(K % 32 == 0);
  auto out = torch::empty({M, N}, scale.options());
  const uint8_t* xp = x.data_ptr<uint8_t>(); const int8_t* wp = w.data_ptr<int8_t>();
  const float* sp = scale.data_ptr<float>(); float* o = out.data_ptr<float>();
  const __m256i one = _mm256_set1_epi16(1);
  #pragma omp parallel for
  for (int64_t j = 0; j < N; ++j) {
    const int8_t* b = wp + j * K;
    for (int64_t m = 0; m < M; m += 2) {
      const int64_t m1 = m + 1 < M ? m + 1 : m;
      const uint8_t *a0 = xp + m * K, *a1 = xp + m1 * K;
      __m256i c0 = _mm256_setzero_si256(), c1 = c0;
      for (int64_t k = 0; k < K; k += 32) {
        const __m256i bv = _mm256_loadu_si256((const __m256i*)(b + k));
        // u8 x s8 pairs into 16 bits, then into 32 bits
        const __m256i p0 = _mm256_maddubs_epi16(_mm256_loadu_si256((const __m256i*)(a0 + k)), bv);
        const __m256i p1 = _mm256_maddubs_epi16(_mm256_loadu_si256((const __m256i*)(a1 + k)), bv);
        c0 = _mm256_add_epi32(c0, _mm256_madd_epi16(p0, one));
        c1 = _mm256_add_epi32(c1, _mm256_madd_epi16(p1, one));
      }
      o[m * N + j] = (float)hsum(c0) * sp[j];
      o[m1 * N + j] = (float)hsum(c1) * sp[j];
    }
  }
  return out;
}
"""
ext = load_inline(name="b14a_qlin", cpp_sources=src, functions=["qlin"],
                  extra_cflags=["-O3", "-mavx2", "-mfma", "-fopenmp"], extra_ldflags=["-fopenmp"])


class ModelNew(nn.Module):
    def __init__(self, in_features, out_features):
        super().__init__()
        self.register_buffer("qweight", torch.randn(out_features, in_features).mul(16).round().clamp(-127, 127).to(torch.int8))
        self.register_buffer("scale", torch.rand(out_features) * 0.01 + 0.001)

    def forward(self, x):
        return ext.qlin(x, self.qweight, self.scale)
