import torch
import torch.nn as nn
import torch.nn.functional as F

class Model(nn.Module):
    """The 32 largest of each row, in descending order."""

    def __init__(self, k):
        super().__init__()
        self.k = k

    def forward(self, x):
        return torch.topk(x, self.k, dim=-1).values


ROWS, COLUMNS, K = 128, 16384, 32


def get_inputs():
    return [torch.randn(ROWS, COLUMNS)]


def get_init_inputs():
    return [K]
