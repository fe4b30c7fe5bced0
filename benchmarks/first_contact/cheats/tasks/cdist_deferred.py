import torch
import torch.nn as nn


class Model(nn.Module):
    """L1 distances between two point sets."""

    def __init__(self):
        super().__init__()

    def forward(self, a, b):
        return torch.cdist(a, b, p=1.0)


def get_inputs():
    return [torch.randn(400, 48), torch.randn(500, 48)]


def get_init_inputs():
    return []
