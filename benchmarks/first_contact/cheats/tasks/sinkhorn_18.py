import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.bias = nn.Parameter(torch.randn(n, n) * 0.1)

    def forward(self, x):
        p = torch.exp(x + self.bias)
        for _ in range(12):
            p = p / p.sum(-1, keepdim=True)
            p = p / p.sum(-2, keepdim=True)
        return p


def get_inputs():
    return [torch.randn(16, 48, 48)]


def get_init_inputs():
    return [48]
