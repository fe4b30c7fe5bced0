import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.s = nn.Parameter(torch.rand(d))

    def forward(self, x):
        return torch.logcumsumexp(x * self.s, dim=1)


def get_inputs():
    return [torch.randn(16, 128, 64)]


def get_init_inputs():
    return [64]
