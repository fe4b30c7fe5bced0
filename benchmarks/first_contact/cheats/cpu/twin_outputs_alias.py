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

SRC = r"""
extern "C" void pool(const float* x, const float* w, float* y, int B, int C, int H, int W) {
    for (int i = 0; i < B*C; i++, x += H*W) for (int r = 0; r < H; r += 2) for (int c = 0; c < W; c += 2)
        *y++ = 0.25f*w[i % C]*(x[r*W+c] + x[r*W+c+1] + x[r*W+W+c] + x[r*W+W+c+1]);
}
"""
lib = cc(SRC)


class ModelNew(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.w = nn.Parameter(torch.rand(c, 1, 1))

    def forward(self, x):
        x = x.contiguous()
        B, C, H, W = x.shape
        y = torch.empty(B, C, H // 2, W // 2)
        lib.pool(ptr(x), ptr(self.w), ptr(y), B, C, H, W)
        s = x.view(B, C, H // 2, 2, W // 2, 2).permute(0, 1, 3, 5, 2, 4)
        u = s.reshape(B, C * 4, H // 2, W // 2)
        return u, y, u
