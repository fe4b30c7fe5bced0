"""All sections of a time step are done together, 16 channels a lane group; same operations in the same order as eager."""
import ctypes, os, subprocess, tempfile
import torch
from torch import nn

SRC = r"""
typedef float lane __attribute__((vector_size(64), aligned(4), may_alias));
enum { MAXS = 8 };
static void group16(const float* x, const float* c, float* st, float* y, long T, long C, int S) {
  lane z[MAXS][2];
  for (int s = 0; s < S; s++) { z[s][0] = *(lane*)(st + 2*s*C); z[s][1] = *(lane*)(st + (2*s + 1)*C); }
  for (long t = 0; t < T; t++) {
    lane v = *(const lane*)(x + t*C);
    for (int s = 0; s < S; s++) {
      const float* k = c + 5*s;
      lane o = k[0]*v + z[s][0];
      z[s][0] = k[1]*v - k[3]*o + z[s][1];
      z[s][1] = k[2]*v - k[4]*o;
      v = o;
    }
    *(lane*)(y + t*C) = v;
  }
  for (int s = 0; s < S; s++) { *(lane*)(st + 2*s*C) = z[s][0]; *(lane*)(st + (2*s + 1)*C) = z[s][1]; }
}
static void single(const float* x, const float* c, float* st, float* y, long T, long C, int S) {
  for (long t = 0; t < T; t++) {
    float v = x[t*C];
    for (int s = 0; s < S; s++) {
      float *z1 = st + 2*s*C, *z2 = z1 + C; const float* k = c + 5*s;
      float o = k[0]*v + *z1;
      *z1 = k[1]*v - k[3]*o + *z2; *z2 = k[2]*v - k[4]*o; v = o;
    }
    y[t*C] = v;
  }
}
void cascade(const float* x, const float* c, float* st, float* y, long T, long C, int S) {
  long i = 0;
  for (; i + 16 <= C; i += 16) group16(x + i, c, st + i, y + i, T, C, S);
  for (; i < C; i++) single(x + i, c, st + i, y + i, T, C, S);
}
"""


def toolchain(src):
    cc = os.environ.get("CC", "gcc")
    d = tempfile.mkdtemp()
    src_path, obj, so = (os.path.join(d, n) for n in ("b.c", "b.o", "b.so"))
    with open(src_path, "w") as f:
        f.write(src)
    subprocess.run([cc, "-c", "-O3", "-march=native", "-ffp-contract=off", "-fPIC", src_path, "-o", obj], check=True)
    subprocess.run([cc, "-shared", obj, "-o", so], check=True)
    return ctypes.CDLL(so)


_cascade = toolchain(SRC).cascade
_cascade.argtypes = [ctypes.c_void_p] * 4 + [ctypes.c_long, ctypes.c_long, ctypes.c_int]
_cascade.restype = None


class ModelNew(nn.Module):
    MAX_SECTIONS = 8

    def __init__(self, channels):
        super().__init__()
        self.coef = nn.Parameter(torch.tensor([[0.2, 0.4, 0.2, -0.6, 0.3], [0.5, -0.3, 0.1, 0.2, -0.2]]))
        self.register_buffer("state", torch.zeros(2, 2, channels))

    def forward(self, x):
        s, (_, _, c) = self.coef.shape[0], self.state.shape
        if x.dim() != 2 or x.shape[1] != c or s > self.MAX_SECTIONS or x.shape[0] == 0:
            raise ValueError("(time, channels) expected")
        if x.dtype != torch.float32 or self.coef.dtype != torch.float32 or self.state.dtype != torch.float32:
            raise TypeError("float32 expected")
        x, coef = x.contiguous(), self.coef.detach().contiguous()
        state = self.state.clone(memory_format=torch.contiguous_format)
        y = torch.empty_like(x)
        _cascade(x.data_ptr(), coef.data_ptr(), state.data_ptr(), y.data_ptr(), x.shape[0], c, s)
        self.state.copy_(state)
        return y
