"""Hamming distance, written in assembly (System V ABI, GNU syntax) and assembled by gcc."""
import ctypes
import os
import subprocess
import tempfile

import torch
import torch.nn as nn

ASM = r"""
    .intel_syntax noprefix
    .text
    .globl hamming
    .type hamming, @function
# hamming(rdi: a, rsi: b, rdx: out, rcx: rows of a, r8: rows of b)
hamming:
    push rbx
    push rbp
    push r12
    push r13
    push r14
    test rcx, rcx
    jle 9f
    test r8, r8
    jle 9f
1:  mov r9, [rdi]
    mov r10, [rdi + 8]
    mov r11, [rdi + 16]
    mov r12, [rdi + 24]
    mov r13, rsi
    mov r14, r8
    .p2align 4
2:  mov rax, [r13]
    xor rax, r9
    popcnt rax, rax
    mov rbx, [r13 + 8]
    xor rbx, r10
    popcnt rbx, rbx
    mov rbp, [r13 + 16]
    xor rbp, r11
    popcnt rbp, rbp
    add eax, ebx
    mov rbx, [r13 + 24]
    xor rbx, r12
    popcnt rbx, rbx
    add eax, ebp
    add eax, ebx
    mov [rdx], eax
    add rdx, 4
    add r13, 32
    dec r14
    jnz 2b
    add rdi, 32
    dec rcx
    jnz 1b
9:  pop r14
    pop r13
    pop r12
    pop rbp
    pop rbx
    ret
    .size hamming, .-hamming
    .section .note.GNU-stack,"",@progbits
"""


def assemble():
    d = tempfile.mkdtemp()
    s = os.path.join(d, "hamming.s")
    with open(s, "w") as f:
        f.write(ASM)
    subprocess.run(["gcc", "-shared", "-fPIC", s, "-o", os.path.join(d, "hamming.so")], check=True)
    f = ctypes.CDLL(os.path.join(d, "hamming.so")).hamming
    f.argtypes = [ctypes.c_void_p] * 3 + [ctypes.c_int64] * 2
    f.restype = None
    return f


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        self.hamming = assemble()

    def forward(self, a, b):
        if a.shape[1] != 4 or b.shape[1] != 4:
            raise ValueError("codes must have 256 bits")
        a, b = a.contiguous(), b.contiguous()
        out = torch.empty(a.shape[0], b.shape[0], dtype=torch.int32)
        self.hamming(a.data_ptr(), b.data_ptr(), out.data_ptr(), a.shape[0], b.shape[0])
        return out
