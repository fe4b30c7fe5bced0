import torch
import torch.nn as nn


class Model(nn.Module):
    """The 2048th smallest number of every row."""

    def __init__(self):
        super().__init__()

    def forward(self, x):
        return torch.kthvalue(x, 2048, dim=-1).values


def get_inputs():
    return [torch.randn(128, 4096)]


def get_init_inputs():
    return []
