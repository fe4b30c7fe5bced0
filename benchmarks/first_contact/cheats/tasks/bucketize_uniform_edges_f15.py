import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    """Index of the bucket; the edges are a buffer that may be fitted to data later."""
    def __init__(self, lo, hi, n):
        super().__init__()
        self.register_buffer("edges", torch.linspace(lo, hi, n))

    def forward(self, x):
        return torch.bucketize(x, self.edges)


def get_inputs():
    return [torch.randn(128, 2048)]


def get_init_inputs():
    return [-4.0, 4.0, 257]
