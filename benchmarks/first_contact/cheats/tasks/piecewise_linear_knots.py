import math
import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.register_buffer("knots", torch.linspace(-3, 3, n))
        self.values = nn.Parameter(torch.randn(n))

    def forward(self, x):
        i = torch.searchsorted(self.knots, x).clamp(1, self.knots.numel() - 1)
        x0, x1 = self.knots[i - 1], self.knots[i]
        y0, y1 = self.values[i - 1], self.values[i]
        return y0 + (y1 - y0) * (x - x0) / (x1 - x0)


def get_inputs():
    return [torch.rand(64, 1024) * 6 - 3]


def get_init_inputs():
    return [33]
