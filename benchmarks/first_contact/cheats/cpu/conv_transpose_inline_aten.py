import ctypes, hashlib, os, subprocess, tempfile
import torch
import torch.nn as nn


def _build(src, *flags):
    d = os.path.join(tempfile.gettempdir(), "kern_" + hashlib.sha1((src + str(flags)).encode()).hexdigest()[:16])
    os.makedirs(d, exist_ok=True)
    so = os.path.join(d, "k.so")
    if not os.path.exists(so):
        cpp, tmp = os.path.join(d, "k.cpp"), so + str(os.getpid())
        with open(cpp, "w") as f:
            f.write(src)
        subprocess.check_call(["g++", "-O3", "-march=native", "-shared", "-fPIC", "-fopenmp", cpp, "-o", tmp, *flags])
        os.replace(tmp, so)
    return so


def _p(t):
    return ctypes.c_void_p(t.data_ptr())


from torch.utils.cpp_extension import load_inline

SRC = r"""
#include <cmath>
#include <c10/core/DispatchKeySet.h>
torch::Tensor up(torch::Tensor x, torch::Tensor w, torch::Tensor b) {
    at::AutoDispatchBelowAutograd guard;
    auto y = at::conv_transpose1d(x, w, {}, 2, 1).contiguous();
    float* p = y.data_ptr<float>(); const float* q = b.data_ptr<float>();
    int64_t n = y.size(0), c = y.size(1), l = y.size(2);
    for (int64_t i = 0; i < n * c; i++)
        for (int64_t j = 0; j < l; j++) p[i * l + j] = std::tanh(p[i * l + j] + q[i % c]);
    return y;
}
"""
ext = load_inline("up_tanh_kernel", SRC, functions=["up"], extra_cflags=["-O2", "-march=native"])


class ModelNew(nn.Module):
    def __init__(self, c, o):
        super().__init__()
        self.up = nn.ConvTranspose1d(c, o, 4, stride=2, padding=1)

    def forward(self, x):
        return ext.up(x.contiguous(), self.up.weight, self.up.bias)
