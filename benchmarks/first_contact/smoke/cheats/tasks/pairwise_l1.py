import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def __init__(self, n, d):
        super().__init__()
        self.p = nn.Parameter(torch.randn(n, d))

    def forward(self, x):
        return torch.cdist(x, self.p, p=1.0)


def get_inputs():
    return [torch.randn(256, 48)]


def get_init_inputs():
    return [256, 48]
