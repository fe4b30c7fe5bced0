import torch
import torch.nn as nn


class Model(nn.Module):
    """log-sum-exp of rows in double precision (log-partition functions)."""

    def __init__(self):
        super().__init__()

    def forward(self, x):
        return torch.logsumexp(x, dim=1)


def get_inputs():
    return [torch.randn(128, 4096, dtype=torch.float64)]


def get_init_inputs():
    return []
