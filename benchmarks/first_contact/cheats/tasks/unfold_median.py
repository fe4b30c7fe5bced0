import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.t = nn.Parameter(torch.rand(c, 1))

    def forward(self, x):
        m = F.pad(x, (2, 2), mode="replicate").unfold(2, 5, 1).median(-1).values
        return F.softshrink(m, 0.1) * self.t


def get_inputs():
    return [torch.randn(8, 32, 128)]


def get_init_inputs():
    return [32]
