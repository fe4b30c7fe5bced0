import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.dw = nn.Conv2d(c, c, 3, padding=1, groups=c)

    def forward(self, x):
        return self.dw(x)


def get_inputs():
    return [torch.randn(2, 64, 56, 56)]


def get_init_inputs():
    return [64]
