import ctypes
import hashlib
import os
import subprocess
import tempfile
import torch
import torch.nn as nn

SRC = r"""
#include <math.h>
#include <string.h>
#include <stdlib.h>
extern "C" int frames(int len, int win, int hop){ return len < win ? 0 : (len - win) / hop + 1; }
"""


def _build(src, flags="-O3 -march=native -fopenmp -fno-math-errno -fno-trapping-math -fassociative-math -fno-signed-zeros"):
    so = os.path.join(tempfile.gettempdir(), "kern_%s.so" % hashlib.sha1((src + flags).encode()).hexdigest()[:16])
    if not os.path.exists(so):
        cpp = so[:-3] + ".%d.cpp" % os.getpid()
        with open(cpp, "w") as f:
            f.write(src)
        subprocess.run(["g++", *flags.split(), "-shared", "-fPIC", cpp, "-o", cpp + ".so", "-ldl", "-lpthread"], check=True)
        os.replace(cpp + ".so", so)
    return ctypes.CDLL(so)


lib = _build(SRC)


def p(t):
    return ctypes.c_void_p(t.data_ptr())


class ModelNew(nn.Module):
    def __init__(self, win, hop):
        super().__init__()
        self.win, self.hop = win, hop

    def forward(self, x):
        n = lib.frames(x.shape[1], self.win, self.hop)
        if n == 0 or not x.is_contiguous():
            raise ValueError("length")
        return torch.as_strided(x, (x.shape[0], n, self.win), (x.stride(0), self.hop, 1), x.storage_offset())
