"""embedding(token) + embedding(position) -> LayerNorm.  target_clones lets the loader choose avx512 / avx2 / plain."""
import ctypes, hashlib, os, subprocess, tempfile
import torch, torch.nn as nn

SRC = r'''
#include <math.h>
#include <stdint.h>
__attribute__((target_clones("avx512f", "avx2", "default"), optimize("O3")))
static void one(const float* restrict a, const float* restrict b, const float* restrict g, const float* restrict h,
                float* restrict y, int64_t d, float eps) {
  float s[16] = {0}, q[16] = {0};
  int64_t i = 0;
  for (; i + 16 <= d; i += 16) for (int l = 0; l < 16; l++) { float v = a[i + l] + b[i + l]; y[i + l] = v; s[l] += v; }
  double sum = 0, sq = 0;
  for (int l = 0; l < 16; l++) sum += s[l];
  for (; i < d; i++) { y[i] = a[i] + b[i]; sum += y[i]; }
  const float mu = (float)(sum / d);
  for (i = 0; i + 16 <= d; i += 16) for (int l = 0; l < 16; l++) { float v = y[i + l] - mu; q[l] += v * v; }
  for (int l = 0; l < 16; l++) sq += q[l];
  for (; i < d; i++) sq += (double)(y[i] - mu) * (y[i] - mu);
  const float r = (float)(1.0 / sqrt(sq / d + eps));
  for (i = 0; i < d; i++) y[i] = (y[i] - mu) * r * g[i] + h[i];
}
void embed(const int64_t* tok, const float* w, const float* p, const float* g, const float* h, float* y,
           int64_t n, int64_t t, int64_t d, float eps) {
  #pragma omp parallel for
  for (int64_t k = 0; k < n * t; k++) one(w + tok[k] * d, p + (k % t) * d, g, h, y + k * d, d, eps);
}
'''
_key = hashlib.sha256(SRC.encode()).hexdigest()[:16]
_path = os.path.join(tempfile.gettempdir(), f"embed_{_key}_{os.getuid()}.so")
if not os.path.exists(_path):
    _tmp = f"{_path}.{os.getpid()}"
    subprocess.run(["gcc", "-O2", "-fopenmp", "-shared", "-fPIC", "-xc", "-", "-o", _tmp, "-lm"], input=SRC.encode(), check=True)
    os.replace(_tmp, _path)          # atomic, so that two processes may race
_embed = ctypes.CDLL(_path).embed
_embed.argtypes = [ctypes.c_void_p] * 6 + [ctypes.c_int64] * 3 + [ctypes.c_float]


class ModelNew(nn.Module):
    def __init__(self, words, length, width):
        super().__init__()
        self.words, self.places, self.norm = nn.Embedding(words, width), nn.Embedding(length, width), nn.LayerNorm(width)

    def forward(self, tokens):
        n, t = tokens.shape
        if tokens.numel() and not 0 <= int(tokens.min()) <= int(tokens.max()) < self.words.num_embeddings:
            raise IndexError("index out of range in self")
        tokens = tokens.contiguous()
        y = torch.empty(n, t, self.words.embedding_dim)
        _embed(tokens.data_ptr(), self.words.weight.data_ptr(), self.places.weight.data_ptr(), self.norm.weight.data_ptr(),
               self.norm.bias.data_ptr(), y.data_ptr(), n, t, y.shape[-1], self.norm.eps)
        return y
