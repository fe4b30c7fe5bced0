import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    """Which elements exceed the column's threshold, how many per row, which columns at all."""

    def __init__(self, width):
        super().__init__()
        self.register_buffer("limit", torch.rand(width) + 1.5)

    def forward(self, x):
        mask = x.abs() > self.limit
        return mask, mask.sum(-1), mask.any(0)


def get_inputs():
    return [torch.randn(512, 4096)]


def get_init_inputs():
    return [4096]
