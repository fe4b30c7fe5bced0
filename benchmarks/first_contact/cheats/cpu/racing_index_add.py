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
extern "C" void index_add(const int64_t* idx, const float* s, float* y, int64_t n, int64_t rows, int64_t d) {
    #pragma omp parallel
    {
        #pragma omp for
        for (int64_t i = 0; i < rows * d; i++) y[i] = 0.f;
        #pragma omp for schedule(static)
        for (int64_t i = 0; i < n; i++) {
            float* o = y + idx[i] * d; const float* a = s + i * d;
            #pragma omp simd
            for (int64_t j = 0; j < d; j++) o[j] += a[j];
        }
    }
}
'''
_lib = _build(SOURCE, "index_add")


class ModelNew(nn.Module):
    def __init__(self, rows):
        super().__init__()
        self.rows = rows

    def forward(self, index, source):
        index, source = index.contiguous(), source.contiguous()
        y = torch.empty(self.rows, source.shape[1])
        p = lambda z: ctypes.c_void_p(z.data_ptr())
        q = ctypes.c_int64
        _lib.index_add(p(index), p(source), p(y), q(index.numel()), q(self.rows), q(source.shape[1]))
        return y
