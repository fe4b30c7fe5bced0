import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    """Every token goes to its best expert."""

    def __init__(self, width, experts):
        super().__init__()
        self.gate = nn.Linear(width, experts)
        self.weight = nn.Parameter(torch.randn(experts, width, width) * width ** -0.5)

    def forward(self, x):
        p, best = torch.softmax(self.gate(x), 1).max(1)
        out = torch.zeros_like(x)
        for e in range(self.weight.shape[0]):
            rows = (best == e).nonzero()[:, 0]
            out[rows] = x[rows] @ self.weight[e]
        return out * p[:, None]


def get_inputs():
    return [torch.randn(2048, 128)]


def get_init_inputs():
    return [128, 8]
