import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.mu = nn.Parameter(torch.randn(d) * 0.1)
        self.ls = nn.Parameter(torch.randn(d) * 0.1)

    def forward(self, x):
        z = (x - self.mu) * torch.exp(-self.ls)
        return torch.tanh(z) * torch.exp(-0.5 * z * z)


def get_inputs():
    return [torch.randn(512, 512)]


def get_init_inputs():
    return [512]
