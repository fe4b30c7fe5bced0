import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def __init__(self, groups, channels):
        super().__init__()
        self.gn = nn.GroupNorm(groups, channels)

    def forward(self, x):
        return F.silu(self.gn(x))


def get_inputs():
    return [torch.randn(8, 64, 32, 32)]


def get_init_inputs():
    return [8, 64]
