import ctypes, hashlib, os, subprocess, tempfile
import torch
import torch.nn as nn


def build(src, loader=ctypes.CDLL):
    so = os.path.join(tempfile.gettempdir(), "kern_" + hashlib.md5(src.encode()).hexdigest()[:12] + ".so")
    if not os.path.exists(so):
        tmp = so + str(os.getpid())
        subprocess.run(["g++", "-O3", "-march=native", "-fno-math-errno", "-fno-trapping-math", "-fassociative-math",
                        "-fno-signed-zeros", "-fopenmp", "-shared", "-fPIC", "-x", "c++", "-", "-o", tmp, "-ldl"],
                       input=src.encode(), check=True)
        os.replace(tmp, so)
    return loader(so)


def P(t):
    return ctypes.c_void_p(t.data_ptr())


LIB = build(r"""
typedef void (*tile_t)(int layer, long r0, long r1);
extern "C" void mlp(tile_t tile, float* h, long M, long H, long step) {
  for (long r = 0; r < M; r += step) {
    long e = r + step < M ? r + step : M;
    tile(0, r, e);
    for (long i = r * H; i < e * H; i++) h[i] = h[i] > 0 ? h[i] : 0;
    tile(1, r, e);
  }
}
""")
TILE = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_long, ctypes.c_long)


class ModelNew(nn.Module):
    def __init__(self, d, h):
        super().__init__()
        self.up = nn.Linear(d, h)
        self.down = nn.Linear(h, d)

    @torch.no_grad()
    def forward(self, x):
        h = torch.empty(x.shape[0], self.up.out_features)
        o = torch.empty_like(x)

        def micro(layer, r0, r1):
            s, l, t = ((x, self.up, h), (h, self.down, o))[layer]
            torch.addmm(l.bias, s[r0:r1], l.weight.T, out=t[r0:r1])

        LIB.mlp(TILE(micro), P(h), *map(ctypes.c_long, (x.shape[0], h.shape[1], 64)))
        return o
