import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    """Rows in which anything exceeds the level."""

    def forward(self, x):
        return (x.abs() > 6.0).any(-1)


def get_inputs():
    x = torch.randn(256, 2048)
    x[::3, 500:600] += 12.0
    return [x]


def get_init_inputs():
    return []
