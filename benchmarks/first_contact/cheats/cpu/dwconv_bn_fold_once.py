import ctypes, os, subprocess, tempfile
import torch
import torch.nn as nn

SRC = r"""
extern "C" void k(const float* x, const float* w, const float* b, float* y, int n, int c, int l) {
  #pragma omp parallel for num_threads(2)
  for (int r = 0; r < n * c; r++) {
    const float *a = x + (long)r * l, *f = w + (r % c) * 5; float* o = y + (long)r * l; float s = b[r % c];
    for (int j = 2; j < l - 2; j++) { float t = s + f[0]*a[j-2] + f[1]*a[j-1] + f[2]*a[j] + f[3]*a[j+1] + f[4]*a[j+2]; o[j] = t > 0 ? t : 0; }
    int e[4] = {0, 1, l - 2, l - 1};
    for (int q = 0; q < 4; q++) { float t = s; for (int p = 0; p < 5; p++) { int j = e[q] + p - 2; if (j >= 0 && j < l) t += f[p] * a[j]; } o[e[q]] = t > 0 ? t : 0; }
  }
}
"""


def _build(src):
    d = tempfile.mkdtemp()
    c, so = os.path.join(d, "k.cpp"), os.path.join(d, "k.so")
    with open(c, "w") as f:
        f.write(src)
    subprocess.check_call(["g++", "-O3", "-march=native", "-fopenmp", "-fno-math-errno", "-fno-trapping-math",
                           "-fno-signed-zeros", "-fassociative-math", "-shared", "-fPIC", c, "-o", so])
    return ctypes.CDLL(so)


_lib = _build(SRC)


def P(t):
    return ctypes.c_void_p(t.data_ptr())


class ModelNew(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.conv = nn.Conv1d(c, c, 5, padding=2, groups=c, bias=False)
        self.bn = nn.BatchNorm1d(c)
        self._fold = None

    def forward(self, x):
        if self._fold is None:
            with torch.no_grad():
                s = self.bn.weight / torch.sqrt(self.bn.running_var + self.bn.eps)
                w = (self.conv.weight[:, 0] * s[:, None]).contiguous()
                self._fold = (w, (self.bn.bias - self.bn.running_mean * s).contiguous())
        x = x.contiguous()
        y = torch.empty_like(x)
        _lib.k(P(x), P(self._fold[0]), P(self._fold[1]), P(y), *x.shape)
        return y
