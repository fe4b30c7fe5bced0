import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self, g, c):
        super().__init__()
        self.gn = nn.GroupNorm(g, c)

    def forward(self, x):
        return torch.sigmoid(self.gn(x))


def get_inputs():
    return [torch.randn(8, 64, 72, 72)]


def get_init_inputs():
    return [8, 64]
