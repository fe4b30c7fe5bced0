import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(d))

    def forward(self, x):
        return F.normalize(x, dim=-1, eps=1e-6) * self.scale


def get_inputs():
    return [torch.randn(4096, 256)]


def get_init_inputs():
    return [256]
