import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def __init__(self, a, b, o):
        super().__init__()
        self.bil = nn.Bilinear(a, b, o)

    def forward(self, x, y):
        return torch.tanh(self.bil(x, y))


def get_inputs():
    return [torch.randn(128, 64), torch.randn(128, 48)]


def get_init_inputs():
    return [64, 48, 32]
