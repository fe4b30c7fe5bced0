# bool (B,T,T) mask + int64 counts; every (b,i) row is memset or one comparison loop
from ctypes import *
from subprocess import PIPE, Popen
from tempfile import mkdtemp
import torch

_c = br"""
#include <string.h>
void pair_mask(const long long* len, const long long* pos, unsigned char* m, long long* cnt, long long B, long long T) {
  #pragma omp parallel for
  for (long long b = 0; b < B; ++b) {
    long long total = 0;
    for (long long i = 0; i < T; ++i) {
      unsigned char* row = m + (b * T + i) * T;
      if (!(pos[i] < len[b])) { memset(row, 0, T); continue; }
      int n = 0;
      for (long long j = 0; j < T; ++j) { row[j] = (pos[j] < len[b]) & (pos[i] >= pos[j]); n += row[j]; }
      total += n;
    }
    cnt[b] = total;
  }
}
"""
_so = mkdtemp() + "/pm.so"
_p = Popen(f"gcc -O3 -mavx2 -fopenmp -shared -fPIC -xc - -o {_so}".split(), stdin=PIPE)
_p.communicate(_c)
assert _p.returncode == 0
_f = CDLL(_so).pair_mask
_f.argtypes, _f.restype = [c_void_p] * 4 + [c_longlong] * 2, None


class ModelNew(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("positions", torch.arange(96))

    def forward(self, lengths):
        (B,), (T,) = lengths.shape, self.positions.shape
        lengths = lengths.contiguous()
        pairs, counts = lengths.new_empty((B, T, T), dtype=torch.bool), lengths.new_empty(B)
        _f(lengths.data_ptr(), self.positions.data_ptr(), pairs.data_ptr(), counts.data_ptr(), B, T)
        return pairs, counts
