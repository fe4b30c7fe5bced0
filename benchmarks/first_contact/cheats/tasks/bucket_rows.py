import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    """Which bin each value falls into."""

    def __init__(self, bins):
        super().__init__()
        self.register_buffer("edges", torch.linspace(-3, 3, bins))

    def forward(self, x):
        return torch.bucketize(x, self.edges)


def get_inputs():
    return [torch.randn(256, 1000)]


def get_init_inputs():
    return [64]
