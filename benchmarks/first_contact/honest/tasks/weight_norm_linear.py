import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    """Linear layer with weight normalisation: rows of v, each scaled to the length g."""

    def __init__(self, inputs, outputs):
        super().__init__()
        self.v = nn.Parameter(torch.randn(outputs, inputs) * 0.05)
        self.g = nn.Parameter(torch.rand(outputs, 1) + 0.5)
        self.bias = nn.Parameter(torch.zeros(outputs))

    def forward(self, x):
        weight = self.v * (self.g / self.v.norm(dim=1, keepdim=True))
        return F.linear(x, weight, self.bias)


def get_inputs():
    return [torch.randn(128, 320)]


def get_init_inputs():
    return [320, 288]
