import torch
import torch.nn as nn
import torch.nn.functional as F

C = 16
S = 256


class Model(nn.Module):
    """Nearest-neighbour upsampling by two."""

    def __init__(self):
        super().__init__()

    def forward(self, x):
        return F.interpolate(x, scale_factor=2, mode="nearest")


def get_inputs():
    return [torch.randn(1, C, S, S)]


def get_init_inputs():
    return []
