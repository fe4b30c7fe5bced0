import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.cap = nn.Parameter(torch.full((c,), 1.5))

    def forward(self, x):
        return torch.minimum(torch.relu(x), self.cap)


def get_inputs():
    return [torch.randn(2048, 1024)]


def get_init_inputs():
    return [1024]
