import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.gn = nn.GroupNorm(1, c)

    def forward(self, x):
        return F.silu(self.gn(x))


def get_inputs():
    return [torch.randn(4, 64, 64, 64)]


def get_init_inputs():
    return [64]
