import torch
import torch.nn as nn

N = 1024
D = 8


class Model(nn.Module):
    """Gaussian kernel matrix."""

    def __init__(self):
        super().__init__()

    def forward(self, a, b):
        return torch.exp(-0.5 * torch.cdist(a, b).square())


def get_inputs():
    return [torch.rand(N, D), torch.rand(N, D)]


def get_init_inputs():
    return []
