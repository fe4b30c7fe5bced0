"""pixel_shuffle(2) + bias + prelu.  Two source rows are interleaved by hand written unpck instructions (SSE2, any x86-64)."""
import ctypes, platform, subprocess, tempfile
import torch, torch.nn as nn

assert platform.machine() in ("x86_64", "AMD64"), "the inline assembly is for x86-64"
SRC = r'''
static inline float act(float v, float b, float a) { v += b; return v > 0 ? v : a * v; }
void shuffle(const float* x, const float* bias, const float* slope, long slopes, float* y, long n, long c, long h, long w) {
  #pragma omp parallel for collapse(2)
  for (long i = 0; i < n; i++) for (long k = 0; k < c; k++) {
    const float b = bias[k], a = slope[slopes == 1 ? 0 : k];
    for (long r = 0; r < h; r++) for (int half = 0; half < 2; half++) {
      const float* p = x + (((i * c + k) * 4 + 2 * half) * h + r) * w;
      const float* q = p + h * w;
      float* o = y + ((i * c + k) * 2 * h + 2 * r + half) * 2 * w;
      long j = 0;
      for (; j + 4 <= w; j += 4)
        __asm__ volatile(
          "movups (%0), %%xmm0\n\t"
          "movups (%1), %%xmm1\n\t"
          "movaps %%xmm0, %%xmm2\n\t"
          "unpcklps %%xmm1, %%xmm0\n\t"
          "unpckhps %%xmm1, %%xmm2\n\t"
          "movups %%xmm0, (%2)\n\t"
          "movups %%xmm2, 16(%2)\n\t"
          :: "r"(p + j), "r"(q + j), "r"(o + 2 * j) : "xmm0", "xmm1", "xmm2", "memory");
      for (; j < w; j++) { o[2 * j] = p[j]; o[2 * j + 1] = q[j]; }
      for (j = 0; j < 2 * w; j++) o[j] = act(o[j], b, a);
    }
  }
}
'''
_so = tempfile.mktemp('.so')
subprocess.run(['gcc', '-O2', '-ftree-vectorize', '-fopenmp', '-shared', '-fPIC', '-xc', '-', '-o', _so], input=SRC.encode(), check=True)
_lib = ctypes.CDLL(_so)


class ModelNew(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.bias = nn.Parameter(torch.randn(channels, 1, 1))
        self.act = nn.PReLU(channels)

    def forward(self, x):
        x = x.contiguous()
        n, c4, h, w = x.shape
        y = x.new_empty(n, c4 // 4, 2 * h, 2 * w)
        V, L = ctypes.c_void_p, ctypes.c_long
        slope = self.act.weight
        _lib.shuffle(V(x.data_ptr()), V(self.bias.data_ptr()), V(slope.data_ptr()), L(slope.numel()), V(y.data_ptr()), L(n), L(c4 // 4), L(h), L(w))
        return y
