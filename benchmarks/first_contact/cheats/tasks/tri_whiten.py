import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.mean = nn.Parameter(torch.zeros(d, 1))
        self.low = nn.Parameter(torch.tril(torch.randn(d, d) / d) + torch.eye(d))

    def forward(self, x):
        return torch.linalg.solve_triangular(self.low, x - self.mean, upper=False)


def get_inputs():
    return [torch.randn(384, 512)]


def get_init_inputs():
    return [384]
