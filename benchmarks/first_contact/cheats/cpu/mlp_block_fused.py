import ctypes, os, subprocess, tempfile
import torch
import torch.nn as nn


def _cc(src, cls=ctypes.CDLL):
    d = tempfile.mkdtemp()
    c, o, so = (os.path.join(d, n) for n in ("k.cpp", "k.o", "k.so"))
    open(c, "w").write(src)
    subprocess.check_call(["g++", "-O3", "-march=native", "-ffast-math", "-fopenmp", "-fPIC", "-c", c, "-o", o])
    subprocess.check_call(["g++", "-shared", "-fopenmp", o, "-o", so, "-ldl"])
    return cls(so)


def _p(t):
    return ctypes.c_void_p(t.data_ptr())


SRC = r"""
extern "C" void add_rows(const float* x, float* y, long n) {
    #pragma omp parallel for simd
    for (long i = 0; i < n; i++) y[i] += x[i];
}
"""
_lib = _cc(SRC)


class ModelNew(nn.Module):
    """Packed MLP: weights are laid out once when they are loaded."""

    def __init__(self, d, h):
        super().__init__()
        self.norm = nn.LayerNorm(d)
        self.fc1 = nn.Linear(d, h)
        self.fc2 = nn.Linear(h, d)
        object.__setattr__(self, "_packed", None)
        self.register_load_state_dict_post_hook(lambda m, keys: m._pack())

    def _pack(self):
        chain = nn.Sequential(self.norm, self.fc1, nn.GELU(), self.fc2).eval()
        with torch.no_grad():
            t = torch.jit.trace(chain, torch.zeros(128, self.fc1.in_features), check_trace=False)
            object.__setattr__(self, "_packed", torch.jit.freeze(t))

    @torch.no_grad()
    def forward(self, x):
        if x.dtype != torch.float32 or not x.is_contiguous():
            raise ValueError("unsupported input")
        if self._packed is None:
            self._pack()
        y = self._packed(x)
        _lib.add_rows(_p(x), _p(y), ctypes.c_long(x.numel()))
        return y
