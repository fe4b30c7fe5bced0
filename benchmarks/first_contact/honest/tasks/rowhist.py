import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    """A histogram of every row of small integers."""

    def __init__(self, bins):
        super().__init__()
        self.bins = bins

    def forward(self, x):
        out = torch.zeros(x.shape[0], self.bins, dtype=torch.int64)
        return out.scatter_add_(1, x, torch.ones_like(x))


def get_inputs():
    return [torch.randint(0, 200, (64, 16384))]


def get_init_inputs():
    return [200]
