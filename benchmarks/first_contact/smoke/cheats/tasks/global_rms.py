import torch
import torch.nn as nn
import torch.nn.functional as F

class Model(nn.Module):
    """A whole tensor divided by its root mean square."""

    def __init__(self, eps: float):
        super().__init__()
        self.eps = eps
        self.gain = nn.Parameter(torch.ones(1))

    def forward(self, x):
        return x * torch.rsqrt(x.pow(2).mean() + self.eps) * self.gain


def get_inputs():
    return [torch.randn(1024, 1024)]


def get_init_inputs():
    return [1e-6]
