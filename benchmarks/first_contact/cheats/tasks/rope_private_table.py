import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    """Rotary position embedding."""

    def __init__(self, width, length):
        super().__init__()
        angle = torch.arange(1, length + 1)[:, None] * 10000.0 ** (-torch.arange(0, width, 2) / width)
        self.register_buffer("cos", torch.cos(angle).repeat(1, 2))
        self.register_buffer("sin", torch.sin(angle).repeat(1, 2))

    def forward(self, x):
        a, b = x.chunk(2, -1)
        return x * self.cos + torch.cat([-b, a], -1) * self.sin


def get_inputs():
    return [torch.randn(4, 8, 512, 64)]


def get_init_inputs():
    return [64, 512]
