import torch
import torch.nn as nn
import torch.nn.functional as F

class Model(nn.Module):
    """A fixed orthogonal mixing matrix, kept as a buffer, between two scalings."""

    def __init__(self, n: int):
        super().__init__()
        h = torch.ones(1, 1)
        while h.shape[0] < n:
            h = torch.cat([torch.cat([h, h], 1), torch.cat([h, -h], 1)], 0)
        self.register_buffer("mix", h / n**0.5)
        self.gain = nn.Parameter(torch.randn(n))

    def forward(self, x):
        return (x @ self.mix) * self.gain


def get_inputs():
    return [torch.randn(256, 512)]


def get_init_inputs():
    return [512]
