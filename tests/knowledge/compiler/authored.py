"""Kernels as a strong author would write them, for tests: a softmax of rows on each target, with two tunables."""

from __future__ import annotations

from foundry.knowledge.candidate import AuthoredKernel, AuthoredLaunch, AuthoredScratch, AuthoredTunable

CPU_CODE = """#include <algorithm>

static void row(const float* x, float* y) {
  float top = -std::numeric_limits<float>::infinity();
#pragma omp simd reduction(max : top)
  for (long i = 0; i < x_d1; ++i) top = x[i] > top ? x[i] : top;
  float total = 0;
#pragma omp simd simdlen(LANES) reduction(+ : total)
  for (long i = 0; i < x_d1; ++i) total += y[i] = math::exp(x[i] - top);
  const float scale = 1 / total;
#pragma omp simd
  for (long i = 0; i < x_d1; ++i) y[i] *= scale;
}

static void softmax(const float* x, float* out, long rows) {
#pragma omp parallel for schedule(static, GRAIN)
  for (long r = 0; r < rows; ++r) row(x + r * x_d1, out + r * x_d1);
}
"""
CPU = AuthoredKernel(
    CPU_CODE,
    (AuthoredLaunch("softmax", ("x", "out", "x_d0")),),
    (AuthoredTunable("GRAIN", (1, 4, 16), 4, "rows a thread takes at once"), AuthoredTunable("LANES", (8, 16), 16)),
    ("GRAIN <= x_d0",),
)

CUDA_CODE = """extern "C" __global__ void softmax(const float* x, float* out, const int rows) {
  __shared__ float held[THREADS];
  for (int r = blockIdx.x * ROWS; r < min(rows, (int)(blockIdx.x + 1) * ROWS); ++r) {
    const float* in = x + r * x_d1;
    float top = -FOUNDRY_INF, total = 0;
    for (int i = threadIdx.x; i < x_d1; i += THREADS) top = fmaxf(top, in[i]);
    held[threadIdx.x] = top;
    __syncthreads();
    for (int i = 0; i < THREADS; ++i) top = fmaxf(top, held[i]);
    __syncthreads();
    for (int i = threadIdx.x; i < x_d1; i += THREADS) total += math::exp(in[i] - top);
    held[threadIdx.x] = total;
    __syncthreads();
    total = 0;
    for (int i = 0; i < THREADS; ++i) total += held[i];
    __syncthreads();
    for (int i = threadIdx.x; i < x_d1; i += THREADS) out[r * x_d1 + i] = math::exp(in[i] - top) / total;
  }
}
"""
CUDA = AuthoredKernel(
    CUDA_CODE,
    (AuthoredLaunch("softmax", ("x", "out", "x_d0"), ("ceil_div(x_d0, ROWS)",), ("THREADS",)),),
    (AuthoredTunable("THREADS", (32, 64, 128), 64), AuthoredTunable("ROWS", (1, 2), 2)),
    ("THREADS * ROWS <= 128",),
)

# A linear layer whose weight is turned once, into memory that is kept until the weight changes.
PACKED_CODE = """static void turn(const float* weight, float* turned) {
  for (long o = 0; o < p_weight_d0; ++o)
    for (long i = 0; i < p_weight_d1; ++i) turned[i * p_weight_d0 + o] = weight[o * p_weight_d1 + i];
}

static void product(const float* x, const float* turned, float* sums, float* out) {
  for (long r = 0; r < x_d0; ++r) {
    for (long o = 0; o < out_d1; ++o) sums[o] = 0;
    for (long i = 0; i < x_d1; ++i)
      for (long o = 0; o < out_d1; ++o) sums[o] += x[r * x_d1 + i] * turned[i * out_d1 + o];
    for (long o = 0; o < out_d1; ++o) out[r * out_d1 + o] = sums[o];
  }
}
"""
PACKED = AuthoredKernel(
    PACKED_CODE,
    (
        AuthoredLaunch("turn", ("p_weight", "turned"), once=True),
        AuthoredLaunch("product", ("x", "turned", "sums", "out")),
    ),
    scratch=(AuthoredScratch("turned", "p_weight_n", kept=True), AuthoredScratch("sums", "out_d1")),
)
