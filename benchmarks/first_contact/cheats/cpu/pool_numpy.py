"""Linear layer and ReLU: row blocks on a small thread pool, bias and ReLU fused natively."""
import ctypes
import subprocess
import tempfile
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch
import torch.nn as nn

SRC = r"""
void bias_relu(float* y, const float* b, long n, long m) {
  for (long i = 0; i < n; i++) for (long j = 0; j < m; j++) { float v = y[i * m + j] + b[j]; y[i * m + j] = v > 0 ? v : (v != v ? v : 0); }
}
"""
_so = tempfile.mktemp(".so")
subprocess.run(["gcc", "-O3", "-march=native", "-shared", "-fPIC", "-x", "c", "-", "-o", _so], input=SRC.encode(), check=True)
_lib = ctypes.CDLL(_so)
_lib.bias_relu.argtypes = [ctypes.c_void_p] * 2 + [ctypes.c_long] * 2
_pool = ThreadPoolExecutor(2)


class ModelNew(nn.Module):
    def __init__(self, fin, fout):
        super().__init__()
        self.linear = nn.Linear(fin, fout)

    def forward(self, x):
        w, b = self.linear.weight.detach(), self.linear.bias
        y = torch.empty(x.shape[0], w.shape[0])
        half = x.shape[0] // 2

        def part(rows):
            np.matmul(x[rows].numpy(), w.numpy().T, out=y[rows].numpy())
            _lib.bias_relu(y[rows].data_ptr(), b.data_ptr(), y[rows].shape[0], y.shape[1])

        list(_pool.map(part, (slice(0, half), slice(half, x.shape[0]))))
        return y
