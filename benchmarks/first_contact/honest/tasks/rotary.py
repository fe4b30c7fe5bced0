import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    """Rotary embedding of queries and keys."""

    def __init__(self, steps, width):
        super().__init__()
        freq = 10000.0 ** (-torch.arange(0, width, 2).float() / width)
        angle = torch.outer(torch.arange(steps).float(), freq)
        angle = torch.cat([angle, angle], -1)
        self.register_buffer("cos", angle.cos())
        self.register_buffer("sin", angle.sin())

    @staticmethod
    def turn(x):
        a, b = x.chunk(2, -1)
        return torch.cat([-b, a], -1)

    def forward(self, q, k):
        return q * self.cos + self.turn(q) * self.sin, k * self.cos + self.turn(k) * self.sin


def get_inputs():
    return [torch.randn(4, 8, 256, 64), torch.randn(4, 8, 256, 64)]


def get_init_inputs():
    return [256, 64]
