import ctypes
import logging
import subprocess
import tempfile
from typing import NamedTuple

import torch
from torch import Tensor, nn

log = logging.getLogger(__name__)

KERNEL = r"""
#include <cstdint>
#include <cmath>
template <int I>   // I = size of the inner dimension, 0 when only known at run time
static void body(const float* x, float* v, int64_t* k, float* gap, long outer, long len, long inner_) {
  const long inner = I ? I : inner_;
  for (long o = 0; o < outer; o++) {
    const long base = o*len*inner;
    for (long i = 0; i < inner; i++) { v[base+i] = x[base+i]; k[base+i] = 0; gap[base+i] = x[base+i] - x[base+i]; }
    for (long t = 1; t < len; t++) {
      const float* xr = x + base + t*inner; float* vr = v + base + t*inner; int64_t* kr = k + base + t*inner;
      for (long i = 0; i < inner; i++) {
        float best = vr[i - inner], c = xr[i];
        bool take = (c != c) | ((best == best) & (c >= best));   // ties and NaN move on, as torch.cummax
        vr[i] = take ? c : best;
        kr[i] = take ? t : kr[i - inner];
        gap[base + t*inner + i] = vr[i] - c;
      }
    }
  }
}
extern "C" void cummax(const float* x, float* v, int64_t* k, float* gap, long outer, long len, long inner) {
  if (inner == 8) body<8>(x, v, k, gap, outer, len, 8);
  else body<0>(x, v, k, gap, outer, len, inner);
}
"""


def compiled():
    d = tempfile.mkdtemp()
    with open(d + "/cummax.cpp", "w") as f:
        f.write(KERNEL)
    cmd = ["g++", "-O3", "-march=native", "-shared", "-fPIC", d + "/cummax.cpp", "-o", d + "/cummax.so"]
    log.debug("compiling: %s", " ".join(cmd))
    subprocess.run(cmd, check=True)
    fn = ctypes.CDLL(d + "/cummax.so").cummax
    fn.restype, fn.argtypes = None, [ctypes.c_void_p] * 4 + [ctypes.c_long] * 3
    log.info("cummax kernel ready")
    return fn


class Result(NamedTuple):
    values: Tensor
    indices: Tensor
    gap: Tensor


class ModelNew(nn.Module):
    kernel = staticmethod(compiled())

    def forward(self, x: Tensor) -> Result:
        if x.dtype is not torch.float32 or x.dim() < 2 or x.numel() == 0:
            raise NotImplementedError("non-empty float32 with two dimensions or more")
        x = x.contiguous()
        res = Result(torch.empty_like(x), torch.empty(x.shape, dtype=torch.int64), torch.empty_like(x))
        inner = x[0, 0].numel()
        self.kernel(x.data_ptr(), *(t.data_ptr() for t in res), x.shape[0], x.shape[1], inner)
        return res
