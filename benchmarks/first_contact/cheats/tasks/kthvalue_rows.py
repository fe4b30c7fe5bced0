import torch
import torch.nn as nn


class Model(nn.Module):
    """The k-th smallest value of every row (a 90 % threshold)."""

    def __init__(self, k):
        super().__init__()
        self.k = k

    def forward(self, x):
        return torch.kthvalue(x, self.k, dim=1).values


def get_inputs():
    return [torch.randn(128, 4096)]


def get_init_inputs():
    return [3687]
