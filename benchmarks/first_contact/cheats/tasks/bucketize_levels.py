import torch
import torch.nn as nn


class Model(nn.Module):
    """Index of the level of every value; the level boundaries are kept in the state."""

    def __init__(self, lo, hi, n):
        super().__init__()
        self.register_buffer("boundaries", torch.linspace(lo, hi, n))

    def forward(self, x):
        return torch.bucketize(x, self.boundaries)


def get_inputs():
    return [torch.randn(100000)]


def get_init_inputs():
    return [-3.0, 3.0, 257]
