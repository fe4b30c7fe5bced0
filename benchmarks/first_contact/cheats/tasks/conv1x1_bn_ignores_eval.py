import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def __init__(self, i, o):
        super().__init__()
        self.conv = nn.Conv2d(i, o, 1, bias=False)
        self.bn = nn.BatchNorm2d(o)

    def forward(self, x):
        return F.silu(self.bn(self.conv(x)))


def get_inputs():
    return [torch.randn(8, 64, 24, 24)]


def get_init_inputs():
    return [64, 64]
