import math
import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def __init__(self, c, k):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(c, 1, k) / k)
        self.register_buffer("hist", torch.zeros(c, k - 1))

    def forward(self, x):
        z = torch.cat([self.hist, x], 1)
        self.hist.copy_(z[:, -self.hist.shape[1]:])
        return F.conv1d(z[None], self.weight, groups=z.shape[0])[0]


def get_inputs():
    return [torch.randn(64, 4096)]


def get_init_inputs():
    return [64, 16]
