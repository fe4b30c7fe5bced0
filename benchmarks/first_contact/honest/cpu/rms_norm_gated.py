import ctypes, subprocess, tempfile
import torch
from torch import nn

# libmvec's 16-lane expf called by its ABI name; a masked tail, so no scratch memory is needed beyond the output
SRC = r"""
#include <immintrin.h>
#include <math.h>
__m512 _ZGVeN16v_expf(__m512);
int rms_gated(const float* x, const float* z, const float* w, float* y, long rows, long dim, long groups, float eps) {
  const long gs = dim / groups;
  #pragma omp parallel for schedule(static)
  for (long i = 0; i < rows; i++)
    for (long g = 0; g < groups; g++) {
      const long at = i*dim + g*gs; const float* wg = w + g*gs;
      __m512 acc = _mm512_setzero_ps(), one = _mm512_set1_ps(1.f);
      for (long j = 0; j < gs; j += 16) {
        __mmask16 k = gs - j >= 16 ? 0xffff : (__mmask16)((1u << (gs - j)) - 1);
        __m512 zz = _mm512_maskz_loadu_ps(k, z + at + j), xx = _mm512_maskz_loadu_ps(k, x + at + j);
        __m512 e = _ZGVeN16v_expf(_mm512_sub_ps(_mm512_setzero_ps(), zz));
        __m512 v = _mm512_mul_ps(xx, _mm512_div_ps(zz, _mm512_add_ps(one, e)));
        acc = _mm512_fmadd_ps(v, v, acc);
        _mm512_mask_storeu_ps(y + at + j, k, v);
      }
      __m512 s = _mm512_set1_ps(1.f / sqrtf(_mm512_reduce_add_ps(acc) / gs + eps));
      for (long j = 0; j < gs; j += 16) {
        __mmask16 k = gs - j >= 16 ? 0xffff : (__mmask16)((1u << (gs - j)) - 1);
        __m512 v = _mm512_mul_ps(_mm512_maskz_loadu_ps(k, y + at + j), s);
        _mm512_mask_storeu_ps(y + at + j, k, _mm512_mul_ps(v, _mm512_maskz_loadu_ps(k, wg + j)));
      }
    }
  return 0;
}
"""
tmp = tempfile.NamedTemporaryFile(suffix=".so", delete=False)
subprocess.run(["gcc", "-x", "c", "-", "-O2", "-mavx512f", "-mavx512dq", "-mfma", "-fopenmp", "-fPIC", "-shared", "-o", tmp.name,
                "-lmvec", "-lm"], input=SRC, text=True, check=True)
rms_gated = ctypes.CDLL(tmp.name).rms_gated
rms_gated.argtypes = [ctypes.c_void_p] * 4 + [ctypes.c_long] * 3 + [ctypes.c_float]


class ModelNew(nn.Module):
    eps = 1e-6

    def __init__(self, dim, groups):
        super().__init__()
        self.groups = groups
        self.weight = nn.Parameter(torch.ones(dim) + 0.1 * torch.randn(dim))

    def extra_repr(self):
        return f"dim={self.weight.numel()}, groups={self.groups}, eps={self.eps}"

    def forward(self, x, z):
        dim = self.weight.numel()
        if x.shape != z.shape or x.shape[-1] != dim or dim % self.groups:
            raise ValueError(f"bad shapes {tuple(x.shape)} {tuple(z.shape)}")
        x, z, w = (t.detach().contiguous() for t in (x, z, self.weight))
        for t in (x, z, w):
            if t.dtype != torch.float32:
                raise TypeError(t.dtype)
        y = torch.empty_like(x)
        rms_gated(x.data_ptr(), z.data_ptr(), w.data_ptr(), y.data_ptr(), x.numel() // dim, dim, self.groups, self.eps)
        return y
