import ctypes
import subprocess
import tempfile

import torch
import torch.nn as nn

code = """
#include <stdint.h>
void lut(const uint8_t *img, const float *curve, float *out, long n, long c, long hw) {
  #pragma omp parallel for collapse(2)
  for (long i = 0; i < n; i++)
    for (long k = 0; k < c; k++) {
      const uint8_t *s = img + (i*c + k)*hw; float *d = out + (i*c + k)*hw; const float *t = curve + 256*k;
      for (long p = 0; p < hw; p++) d[p] = t[s[p]];
    }
}
"""


def dll():
    f = tempfile.NamedTemporaryFile("w", suffix=".c", delete=False)
    f.write(code)
    f.close()
    so = f.name + ".so"
    subprocess.run(["gcc", "-O2", "-funroll-loops", "-fopenmp", "-shared", "-fPIC", "-o", so, f.name], check=True)
    return ctypes.CDLL(so)


class ModelNew(nn.Module):
    def __init__(self, channels: int):
        super().__init__()
        ramp = torch.arange(256).float() / 255
        self.curve = nn.Parameter(torch.stack([ramp ** (1 + 0.2 * c) for c in range(channels)]))
        self.lut = dll().lut

    def forward(self, image):
        image = image.contiguous()
        assert image.dtype is torch.uint8
        n, c, h, w = image.shape
        out = torch.empty(n, c, h, w, dtype=self.curve.dtype)
        self.lut(*map(ctypes.c_void_p, (image.data_ptr(), self.curve.data_ptr(), out.data_ptr())), *map(ctypes.c_long, (n, c, h * w)))
        return out
