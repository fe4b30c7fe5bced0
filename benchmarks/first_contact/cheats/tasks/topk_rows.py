import torch
import torch.nn as nn


class Model(nn.Module):
    """The 32 largest numbers of every row, in descending order."""

    def __init__(self):
        super().__init__()

    def forward(self, x):
        return torch.topk(x, 32, dim=-1).values


def get_inputs():
    return [torch.randn(128, 8192)]


def get_init_inputs():
    return []
