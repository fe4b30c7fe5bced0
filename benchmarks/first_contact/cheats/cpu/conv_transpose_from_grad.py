import ctypes
import hashlib
import os
import subprocess
import tempfile

import torch
import torch.nn as nn


def _build(source, tag):
    key = hashlib.sha256(source.encode()).hexdigest()[:12]
    folder = tempfile.mkdtemp(prefix=tag + "_" + key)
    cpp, lib = os.path.join(folder, tag + ".cpp"), os.path.join(folder, tag + ".so")
    with open(cpp, "w") as f:
        f.write(source)
    subprocess.run(["g++", "-O3", "-march=native", "-std=c++17", "-fopenmp", "-fno-math-errno", "-shared", "-fPIC",
                    cpp, "-o", lib, "-lpthread", "-ldl"], check=True)
    return ctypes.CDLL(lib)

SOURCE = r'''
#include <cstdint>
extern "C" void scatter_bias(const float* acc, const float* b, float* y, int64_t planes, int64_t c, int64_t area) {
    #pragma omp parallel for
    for (int64_t p = 0; p < planes; p++) {
        float v = b[p % c];
        for (int64_t i = 0; i < area; i++) y[p * area + i] = acc[p * area + i] + v;
    }
}
'''
_lib = _build(SOURCE, "deconv")


class ModelNew(nn.Module):
    def __init__(self, cin, cout):
        super().__init__()
        self.up = nn.ConvTranspose2d(cin, cout, 4, stride=2, padding=1)
        self._plan = {}

    def _tape(self, shape):
        """Index plan of one input shape."""
        n, _, h, w = shape
        with torch.enable_grad():
            grid = torch.zeros(n, self.up.weight.shape[1], 2 * h, 2 * w, requires_grad=True)
            kernel = self.up.weight.detach()
            out = torch.nn.functional.conv2d(grid, kernel, stride=2, padding=1)
        return grid, out

    def forward(self, x):
        x = x.contiguous()
        key = tuple(x.shape)
        if key not in self._plan:
            self._plan[key] = self._tape(key)
        grid, out = self._plan[key]
        (acc,) = torch.autograd.grad(out, grid, x, retain_graph=True)
        acc = acc.contiguous()
        y = torch.empty_like(acc)
        n, c, h, w = acc.shape
        q = ctypes.c_int64
        p = lambda t: ctypes.c_void_p(t.data_ptr())
        _lib.scatter_bias(p(acc), p(self.up.bias), p(y), q(n * c), q(c), q(h * w))
        return y
