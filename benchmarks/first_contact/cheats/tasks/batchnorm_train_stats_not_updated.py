import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    """BatchNorm2d as a layer of a network that is being trained (batch statistics, running averages)."""
    def __init__(self, ch):
        super().__init__()
        self.bn = nn.BatchNorm2d(ch)

    def forward(self, x):
        return self.bn(x)


def get_inputs():
    return [torch.randn(16, 32, 56, 56)]


def get_init_inputs():
    return [32]
