import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def __init__(self, n, d):
        super().__init__()
        self.c = nn.Parameter(torch.randn(n, d))
        self.logg = nn.Parameter(torch.zeros(n) - 3)

    def forward(self, x):
        return torch.exp(-self.logg.exp() * torch.cdist(x, self.c).pow(2))


def get_inputs():
    return [torch.randn(256, 32)]


def get_init_inputs():
    return [256, 32]
