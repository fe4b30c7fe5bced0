"""GRU over a sequence.  The weights are kept transposed, (in, 3*hid), per instance, and made again when one changed."""
import ctypes, subprocess, tempfile, os
import torch
import torch.nn as nn

SOURCE = """
#include <cmath>
#include <cstdlib>
#include <cstring>
static inline float sig(float v) { return 1.0f / (1.0f + std::exp(-v)); }
// y[0..m) = bias + v(1,k) . wt(k,m)
static void affine(const float* v, const float* wt, const float* bias, float* __restrict y, int k, int m) {
  std::memcpy(y, bias, m * sizeof(float));
  for (int i = 0; i < k; i++) {
    const float c = v[i]; const float* w = wt + (long)i * m;
    for (int j = 0; j < m; j++) y[j] += c * w[j];
  }
}
extern "C" int gru(const float* x, const float* wi, const float* wh, const float* bi, const float* bh,
                   float* y, int T, int B, int I, int H) {
  float* buf = (float*)std::calloc(7 * (size_t)H, sizeof(float));
  if (!buf) return -1;
  float *gi = buf, *gh = buf + 3*H, *zero = buf + 6*H;
  for (int b = 0; b < B; b++) {
    const float* h = zero;
    for (int t = 0; t < T; t++) {
      affine(x + ((long)t*B + b)*I, wi, bi, gi, I, 3*H);
      affine(h, wh, bh, gh, H, 3*H);
      float* o = y + ((long)t*B + b)*H;
      for (int j = 0; j < H; j++) {
        float r = sig(gi[j] + gh[j]), z = sig(gi[H+j] + gh[H+j]);
        float n = std::tanh(gi[2*H+j] + r * gh[2*H+j]);
        o[j] = n + z * (h[j] - n);
      }
      h = o;
    }
  }
  std::free(buf);
  return 0;
}
"""


def build(src):
    fd, so = tempfile.mkstemp(suffix=".so")
    os.close(fd)
    proc = subprocess.run(["g++", "-xc++", "-O3", "-march=native", "-fno-math-errno", "-shared", "-fPIC", "-", "-o", so],
                          input=src, text=True, capture_output=True)
    if proc.returncode:
        raise RuntimeError(proc.stderr)
    lib = ctypes.CDLL(so)
    os.unlink(so)                       # stays mapped
    return lib


class ModelNew(nn.Module):
    _lib = build(SOURCE)

    def __init__(self, inp, hid):
        super().__init__()
        self.cell = nn.GRUCell(inp, hid)
        self._stamp = None
        self._packed = None

    def _weights(self):
        ps = (self.cell.weight_ih, self.cell.weight_hh, self.cell.bias_ih, self.cell.bias_hh)
        stamp = tuple((p.data_ptr(), p._version) for p in ps)
        if stamp != self._stamp:
            with torch.no_grad():
                # clone: t() of a (3H, 1) weight is already contiguous and would alias the parameter
                self._packed = [p.t().clone(memory_format=torch.contiguous_format) for p in ps[:2]] + [p.clone() for p in ps[2:]]
            self._stamp = stamp
        return self._packed

    def forward(self, x):
        I, H = self.cell.input_size, self.cell.hidden_size
        if x.dtype != torch.float32 or x.dim() != 3 or x.shape[2] != I or x.shape[0] < 1:
            raise TypeError("expects float32 (T, B, input)")
        x = x.contiguous()
        T, B = x.shape[:2]
        y = torch.empty(T, B, H)
        ptr = [ctypes.c_void_p(t.data_ptr()) for t in (x, *self._weights(), y)]
        if self._lib.gru(*ptr, T, B, I, H):
            raise MemoryError
        return y
