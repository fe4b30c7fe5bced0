import torch
import torch.nn as nn


class Model(nn.Module):
    """Depthwise 3D convolution."""

    def __init__(self, c):
        super().__init__()
        self.conv = nn.Conv3d(c, c, 3, padding=1, groups=c)

    def forward(self, x):
        return self.conv(x)


def get_inputs():
    return [torch.randn(2, 32, 16, 32, 32)]


def get_init_inputs():
    return [32]
