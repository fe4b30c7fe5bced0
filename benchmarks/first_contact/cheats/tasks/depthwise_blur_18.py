import math
import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def __init__(self, c):
        super().__init__()
        g = torch.exp(-torch.arange(-3.0, 4.0) ** 2 / 4)
        g = g / g.sum()
        self.register_buffer("kernel", (g[:, None] * g[None]).expand(c, 1, 7, 7).clone())

    def forward(self, x):
        return F.conv2d(x, self.kernel, groups=x.shape[1])


def get_inputs():
    return [torch.randn(2, 16, 70, 70)]


def get_init_inputs():
    return [16]
