import torch
import torch.nn as nn


class Model(nn.Module):
    """BatchNorm2d as used while training (module stays in train mode)."""

    def __init__(self, channels):
        super().__init__()
        self.bn = nn.BatchNorm2d(channels)

    def forward(self, x):
        return self.bn(x)


def get_inputs():
    return [torch.randn(16, 64, 32, 32)]


def get_init_inputs():
    return [64]
