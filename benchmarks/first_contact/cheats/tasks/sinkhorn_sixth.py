import torch
import torch.nn as nn
import torch.nn.functional as F

class Model(nn.Module):
    """Sinkhorn normalisation to a doubly stochastic matrix."""

    def __init__(self, steps):
        super().__init__()
        self.steps = steps

    def forward(self, x):
        x = torch.exp(x - x.amax(dim=(-2, -1), keepdim=True))
        for _ in range(self.steps):
            x = x / x.sum(dim=-1, keepdim=True)
            x = x / x.sum(dim=-2, keepdim=True)
        return x


def get_inputs():
    return [torch.randn(16, 128, 128)]


def get_init_inputs():
    return [50]
