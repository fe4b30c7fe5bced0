import ctypes, os, subprocess, tempfile
import torch
import torch.nn as nn
import torch.nn.functional as F


def cc(src, loader=ctypes.CDLL):
    d = tempfile.mkdtemp()
    with open(d + "/k.cpp", "w") as f:
        f.write(src)
    subprocess.check_call(["g++", "-O3", "-march=native", "-ffast-math", "-shared", "-fPIC", "-pthread",
                           d + "/k.cpp", "-o", d + "/k.so", "-ldl"])
    return loader(d + "/k.so")


def ptr(t):
    return ctypes.c_void_p(t.data_ptr())

import numpy as np

SRC = r"""
typedef void (*tile_t)(float*, float*);
extern "C" void conv(tile_t tile, const float* x, const float* b, float* col, float* y, int B, int C, int L, int O) {
    int P = L / 2;
    for (int n = 0; n < B; n++) {
        for (int c = 0; c < C; c++) for (int k = 0; k < 9; k++) for (int p = 0; p < P; p++) {
            int i = 2*p + k - 4; col[(c*9+k)*P+p] = i < 0 || i >= L ? 0 : x[(n*C+c)*L+i]; }
        float* o = y + n*O*P;
        tile(col, o);
        for (int j = 0; j < O; j++) for (int p = 0; p < P; p++) { float v = o[j*P+p] + b[j]; o[j*P+p] = v > 0 ? v : 0.1f*v; }
    }
}
"""
lib = cc(SRC)
FP = ctypes.POINTER(ctypes.c_float)


class ModelNew(nn.Module):
    def __init__(self, c, o):
        super().__init__()
        self.conv = nn.Conv1d(c, o, 9, stride=2, padding=4)

    def forward(self, x):
        B, C, L = x.shape
        w = self.conv.weight.detach().numpy()
        O = w.shape[0]
        w = w.reshape(O, -1)
        view = np.ctypeslib.as_array

        @ctypes.CFUNCTYPE(None, FP, FP)
        def tile(a, o):
            np.dot(w, view(a, (C * 9, L // 2)), out=view(o, (O, L // 2)))

        col, y = torch.empty(C * 9, L // 2), torch.empty(B, O, L // 2)
        lib.conv(tile, ptr(x.contiguous()), ptr(self.conv.bias), ptr(col), ptr(y), B, C, L, O)
        return y
