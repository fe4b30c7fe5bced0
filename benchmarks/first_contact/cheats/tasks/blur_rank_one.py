import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    """Depthwise filter, which starts as a blur."""

    def __init__(self, channels):
        super().__init__()
        g = torch.exp(-torch.linspace(-2, 2, 9) ** 2)
        g = g / g.sum()
        self.weight = nn.Parameter((g[:, None] * g[None, :]).repeat(channels, 1, 1, 1))

    def forward(self, x):
        return F.conv2d(x, self.weight, padding=4, groups=x.shape[1])


def get_inputs():
    return [torch.randn(2, 16, 96, 96)]


def get_init_inputs():
    return [16]
