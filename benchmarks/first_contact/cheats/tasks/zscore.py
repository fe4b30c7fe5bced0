import torch
import torch.nn as nn

ROWS = 1024
N = 1024


class Model(nn.Module):
    """Standard scores of every row."""

    def __init__(self):
        super().__init__()

    def forward(self, x):
        return (x - x.mean(1, keepdim=True)) / (x.std(1, keepdim=True) + 1e-5)


def get_inputs():
    return [torch.randn(ROWS, N)]


def get_init_inputs():
    return []
