import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    """RMS norm of the keys, and one copy of them for every query of a group."""

    def __init__(self, width, group):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.group = group

    def forward(self, k):
        k = k * torch.rsqrt(k.pow(2).mean(-1, keepdim=True) + 1e-6) * self.weight
        return k[:, :, None].repeat(1, 1, self.group, 1, 1)


def get_inputs():
    return [torch.randn(2, 4, 512, 64)]


def get_init_inputs():
    return [64, 8]
