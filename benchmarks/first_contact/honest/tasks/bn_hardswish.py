import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    """Batch norm with running statistics, then hardswish."""

    def __init__(self, channels):
        super().__init__()
        self.bn = nn.BatchNorm2d(channels)
        self.bn.running_mean.copy_(torch.linspace(-1, 1, channels))
        self.bn.running_var.copy_(torch.linspace(0.5, 2, channels))
        self.eval()

    def forward(self, x):
        return F.hardswish(self.bn(x))


def get_inputs():
    return [torch.randn(8, 24, 36, 36)]


def get_init_inputs():
    return [24]
