"""Inference batch norm, residual, ReLU: the inner loop is written in AVX2 assembler, a .s file for gcc."""
import ctypes
import subprocess
import tempfile

import torch
import torch.nn as nn

ASM = r"""
    .text
    .globl fma_relu
    .type fma_relu, @function
# fma_relu(const float *x, const float *skip, float *y, long n, float scale, float shift); n is a multiple of 8
fma_relu:
    vbroadcastss %xmm0, %ymm0
    vbroadcastss %xmm1, %ymm1
    vxorps %ymm2, %ymm2, %ymm2
    xorq %rax, %rax
1:  vmovups (%rdi,%rax,4), %ymm3
    vfmadd132ps %ymm0, %ymm1, %ymm3
    vaddps (%rsi,%rax,4), %ymm3, %ymm3
    vmaxps %ymm3, %ymm2, %ymm3
    vmovups %ymm3, (%rdx,%rax,4)
    addq $8, %rax
    cmpq %rcx, %rax
    jl 1b
    vzeroupper
    ret
    .size fma_relu, .-fma_relu
    .section .note.GNU-stack,"",@progbits
"""
folder = tempfile.mkdtemp()
with open(folder + "/kernel.s", "w") as file:
    file.write(ASM)
subprocess.run(["gcc", "-shared", "-fPIC", "kernel.s", "-o", "kernel.so"], cwd=folder, check=True)
fma_relu = ctypes.CDLL(folder + "/kernel.so").fma_relu
fma_relu.argtypes = [ctypes.c_void_p] * 3 + [ctypes.c_long, ctypes.c_float, ctypes.c_float]


class ModelNew(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(channels))
        self.bias = nn.Parameter(torch.zeros(channels))
        self.register_buffer("running_mean", torch.zeros(channels))
        self.register_buffer("running_var", torch.ones(channels))

    def forward(self, x, skip):
        x, skip = x.contiguous(), skip.contiguous()
        y = torch.empty_like(x)
        rows = zip(*(t.tolist() for t in (self.weight.data, self.bias.data, self.running_mean, self.running_var)))
        folded = [(w / (v + 1e-5) ** 0.5, b - m * w / (v + 1e-5) ** 0.5) for w, b, m, v in rows]
        n, c, size = x.shape[0], x.shape[1], x[0, 0].numel()
        for p in range(n * c):
            at = 4 * p * size
            fma_relu(x.data_ptr() + at, skip.data_ptr() + at, y.data_ptr() + at, size, *folded[p % c])
        return y
