import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.gn = nn.GroupNorm(8, c)

    def forward(self, x):
        return F.mish(self.gn(x)) + x


def get_inputs():
    return [torch.randn(8, 64, 24, 24)]


def get_init_inputs():
    return [64]
