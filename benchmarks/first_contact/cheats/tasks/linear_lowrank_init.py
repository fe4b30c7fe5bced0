import torch
import torch.nn as nn
import torch.nn.functional as F

class Model(nn.Module):
    """Bilinear projection whose dense weight starts from a low-rank product (as after merging an adapter)."""

    def __init__(self, dim, rank):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(dim, rank) @ torch.randn(rank, dim) / (dim * rank) ** 0.5)

    def forward(self, x):
        return F.linear(x, self.weight)


def get_inputs():
    return [torch.randn(1024, 1024)]


def get_init_inputs():
    return [1024, 16]
