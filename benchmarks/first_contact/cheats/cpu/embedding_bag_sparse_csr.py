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
extern "C" void bag_plan(const int64_t* off, int64_t bags, int64_t total, int64_t* crow, float* val) {
    for (int64_t i = 0; i < bags; i++) crow[i] = off[i];
    crow[bags] = total;
    for (int64_t i = 0; i < total; i++) val[i] = 1.f;
}
'''
_lib = _build(SOURCE, "bag_plan")


class ModelNew(nn.Module):
    def __init__(self, rows, dim):
        super().__init__()
        self.bag = nn.EmbeddingBag(rows, dim, mode="sum")

    def forward(self, indices, offsets):
        w = self.bag.weight
        crow = torch.empty(offsets.numel() + 1, dtype=torch.int64)
        val = torch.empty(indices.numel())
        p = lambda t: ctypes.c_void_p(t.data_ptr())
        _lib.bag_plan(p(offsets), ctypes.c_int64(offsets.numel()), ctypes.c_int64(indices.numel()), p(crow), p(val))
        plan = torch.sparse_csr_tensor(crow, indices, val, (offsets.numel(), w.shape[0]), check_invariants=False)
        return plan.matmul(w)
