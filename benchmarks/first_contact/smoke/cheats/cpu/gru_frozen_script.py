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
extern "C" void last_step(const float* h, float* y, int64_t n, int64_t t, int64_t d) {
    #pragma omp parallel for
    for (int64_t i = 0; i < n; i++)
        for (int64_t j = 0; j < d; j++) y[i * d + j] = 2.f * h[(i * t + t - 1) * d + j];
}
'''
_lib = _build(SOURCE, "gru_step")


class ModelNew(nn.Module):
    def __init__(self, size, hidden):
        super().__init__()
        self.rnn = nn.GRU(size, hidden, batch_first=True)
        self.__dict__["_core"] = None
        self._mark = None

    def forward(self, x):
        x = x.contiguous()
        mark = (tuple(x.shape), self.rnn.weight_ih_l0[0, 0].item(), self.rnn.weight_hh_l0[0, 0].item())
        if mark != self._mark:
            self.rnn.eval()
            core = torch.jit.freeze(torch.jit.trace(self.rnn, (x,), check_trace=False))
            self.__dict__["_core"] = core
            self._mark = mark
        h, _ = self.__dict__["_core"](x)
        h = h.contiguous()
        y = torch.empty(h.shape[0], h.shape[2])
        q = ctypes.c_int64
        _lib.last_step(ctypes.c_void_p(h.data_ptr()), ctypes.c_void_p(y.data_ptr()), q(h.shape[0]), q(h.shape[1]), q(h.shape[2]))
        return y
