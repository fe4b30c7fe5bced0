import ctypes, os, subprocess, sys, tempfile
import torch
import torch.nn as nn


def build(src, *flags):
    d = tempfile.mkdtemp(prefix="kern_")
    c, so = os.path.join(d, "k.cpp"), os.path.join(d, "k.so")
    with open(c, "w") as f:
        f.write(src)
    subprocess.check_call(["g++", "-O3", "-march=native", "-ffast-math", "-fopenmp",
                           "-shared", "-fPIC", "-o", so, c, *flags])
    return ctypes.CDLL(so)


def P(t):
    return ctypes.c_void_p(t.data_ptr())

SRC = r"""
extern "C" void conv1x1(const float* x, const float* w, const float* b, float* y, int N, int C, int O, int S) {
#pragma omp parallel for collapse(2)
  for (int n = 0; n < N; n++)
    for (int o = 0; o < O; o += 4) {
      float* d = y + ((long)n * O + o) * S;
      for (int k = 0; k < 4; k++) for (int s = 0; s < S; s++) d[k * S + s] = b[o + k];
      for (int c = 0; c < C; c++) {
        const float* p = x + ((long)n * C + c) * S;
        float w0 = w[o*C+c], w1 = w[(o+1)*C+c], w2 = w[(o+2)*C+c], w3 = w[(o+3)*C+c];
        for (int s = 0; s < S; s++) {
          d[s] += w0 * p[s]; d[S+s] += w1 * p[s]; d[2*S+s] += w2 * p[s]; d[3*S+s] += w3 * p[s];
        }
      }
      for (int s = 0; s < 4 * S; s++) d[s] = d[s] > 0.f ? d[s] : 0.f;
    }
}
"""
lib = build(SRC)


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(64, 64, 1, bias=False)
        self.bn = nn.BatchNorm2d(64)
        self.eval()
        self._fold()
        self.register_load_state_dict_post_hook(lambda m, keys: m._fold())

    @torch.no_grad()
    def _fold(self):
        s = self.bn.weight / torch.sqrt(self.bn.running_var + self.bn.eps)
        self._w = (self.conv.weight.view(64, 64) * s[:, None]).contiguous()
        self._b = (self.bn.bias - self.bn.running_mean * s).contiguous()

    def forward(self, x):
        N, C, H, W = x.shape
        y = torch.empty(N, 64, H, W)
        lib.conv1x1(P(x), P(self._w), P(self._b), P(y), N, C, 64, H * W)
        return y
