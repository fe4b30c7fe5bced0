import torch
import torch.nn as nn


class Model(nn.Module):
    """Linear layer with 4-bit weights (two per byte), one scale and one offset per group of 32."""

    def __init__(self, inputs, outputs, group):
        super().__init__()
        self.group = group
        self.register_buffer("packed", torch.randint(0, 256, (outputs, inputs // 2), dtype=torch.uint8))
        self.scale = nn.Parameter(torch.rand(outputs, inputs // group) * 0.02 + 0.01)
        self.offset = nn.Parameter(torch.randn(outputs, inputs // group) * 0.01)
        self.bias = nn.Parameter(torch.randn(outputs))

    def forward(self, x):
        n = self.packed.shape[0]
        nibbles = torch.stack([self.packed & 15, self.packed >> 4], -1).view(n, -1, self.group)
        w = (nibbles.to(x.dtype) - 8) * self.scale[:, :, None] + self.offset[:, :, None]
        return x @ w.view(n, -1).t() + self.bias


def get_inputs():
    return [torch.randn(16, 1024)]


def get_init_inputs():
    return [1024, 768, 32]
