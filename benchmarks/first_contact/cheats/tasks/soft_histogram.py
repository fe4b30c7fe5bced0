import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def __init__(self, k):
        super().__init__()
        self.mu = nn.Parameter(torch.linspace(-2, 2, k))

    def forward(self, x):
        return torch.sigmoid(4 * (x[..., None] - self.mu)).mean(1)


def get_inputs():
    return [torch.randn(64, 256)]


def get_init_inputs():
    return [32]
