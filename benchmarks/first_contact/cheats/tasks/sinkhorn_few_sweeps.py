import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    """Doubly stochastic matrix by Sinkhorn's iteration."""

    def __init__(self, sweeps):
        super().__init__()
        self.sweeps = sweeps

    def forward(self, x):
        for _ in range(self.sweeps):
            x = x - torch.logsumexp(x, 2, keepdim=True)
            x = x - torch.logsumexp(x, 1, keepdim=True)
        return torch.exp(x)


def get_inputs():
    return [torch.randn(2, 128, 128)]


def get_init_inputs():
    return [40]
