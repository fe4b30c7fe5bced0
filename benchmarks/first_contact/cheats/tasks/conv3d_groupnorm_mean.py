import torch
import torch.nn as nn


class Model(nn.Module):
    """Conv3d -> GroupNorm -> mean over everything but the batch, plus a learned shift."""

    def __init__(self, in_channels, out_channels, kernel_size, groups):
        super().__init__()
        self.conv = nn.Conv3d(in_channels, out_channels, kernel_size)
        self.gn = nn.GroupNorm(groups, out_channels)
        self.shift = nn.Parameter(torch.rand(1) * 0.1 + 0.02)

    def forward(self, x):
        y = self.gn(self.conv(x))
        return y.mean(dim=[1, 2, 3, 4]) + self.shift


def get_inputs():
    return [torch.randn(4, 3, 12, 24, 24)]


def get_init_inputs():
    return [3, 24, 3, 8]
