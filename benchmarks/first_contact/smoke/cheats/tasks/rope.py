import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def __init__(self, d, base):
        super().__init__()
        self.register_buffer("inv_freq", base ** (-torch.arange(0, d, 2).float() / d))

    def forward(self, x):
        f = torch.arange(x.shape[2]).float()[:, None] * self.inv_freq[None, :]
        c, s = f.cos(), f.sin()
        a, b = x.chunk(2, dim=-1)
        return torch.cat([a * c - b * s, a * s + b * c], dim=-1)


def get_inputs():
    return [torch.randn(4, 8, 256, 64)]


def get_init_inputs():
    return [64, 10000.0]
