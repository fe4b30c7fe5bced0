import torch
import torch.nn as nn


class Model(nn.Module):
    """Vector quantisation: replaces each vector by its nearest codebook entry."""

    def __init__(self, n, d):
        super().__init__()
        self.codebook = nn.Parameter(torch.randn(n, d))

    def forward(self, x):
        dist = (x * x).sum(1, keepdim=True) - 2 * x @ self.codebook.t() + (self.codebook**2).sum(1)
        return self.codebook[dist.argmin(1)]


def get_inputs():
    return [torch.randn(2048, 32)]


def get_init_inputs():
    return [256, 32]
