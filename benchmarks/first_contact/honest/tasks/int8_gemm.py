import torch
import torch.nn as nn


class Model(nn.Module):
    """Integer matrix product of int8 activations with int8 weights, int32 bias, and row sums for zero points."""

    def __init__(self, k, n):
        super().__init__()
        self.register_buffer("w", torch.randint(-128, 128, (n, k), dtype=torch.int8))
        self.register_buffer("bias", torch.randint(-5000, 5000, (n,), dtype=torch.int32))

    def forward(self, x):
        y = torch.matmul(x.to(torch.int32), self.w.to(torch.int32).t()) + self.bias
        return y, x.sum(1, dtype=torch.int32)


def get_inputs():
    return [torch.randint(-128, 128, (128, 400), dtype=torch.int8)]


def get_init_inputs():
    return [400, 192]
