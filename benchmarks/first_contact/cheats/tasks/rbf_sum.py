import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def __init__(self, n, d):
        super().__init__()
        self.centers = nn.Parameter(torch.randn(n, d))

    def forward(self, x):
        d2 = (x.unsqueeze(1) - self.centers.unsqueeze(0)).pow(2).sum(-1)
        return torch.exp(-0.1 * d2).sum(1)


def get_inputs():
    return [torch.randn(256, 16)]


def get_init_inputs():
    return [256, 16]
