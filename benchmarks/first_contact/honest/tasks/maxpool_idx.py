import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    """Max pooling 3x3, stride 2, padding 1: values and indices."""

    def __init__(self):
        super().__init__()

    def forward(self, x):
        return F.max_pool2d(x, 3, stride=2, padding=1, return_indices=True)


def get_inputs():
    return [torch.randn(8, 32, 64, 64)]


def get_init_inputs():
    return []
