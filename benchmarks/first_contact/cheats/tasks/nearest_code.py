import torch
import torch.nn as nn
import torch.nn.functional as F

class Model(nn.Module):
    """Squared distance to the nearest entry of a code book."""

    def __init__(self, codes: int, n: int):
        super().__init__()
        self.book = nn.Parameter(torch.randn(codes, n))

    def forward(self, x):
        return torch.cdist(x, self.book).pow(2).min(dim=1).values


def get_inputs():
    return [torch.randn(1024, 64)]


def get_init_inputs():
    return [512, 64]
