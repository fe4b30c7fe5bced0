import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.bias = nn.Parameter(torch.randn(d))
        self.beta = nn.Parameter(torch.ones(1) * 1.3)

    def forward(self, x):
        h = x + self.bias
        return h * torch.sigmoid(self.beta * h)


def get_inputs():
    return [torch.randn(512, 1024)]


def get_init_inputs():
    return [1024]
