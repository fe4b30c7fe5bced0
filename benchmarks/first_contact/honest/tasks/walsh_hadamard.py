import math
import torch
import torch.nn as nn


class Model(nn.Module):
    """Randomised Walsh-Hadamard transform along the last dimension."""

    def __init__(self, n):
        super().__init__()
        self.n = n
        self.scale = nn.Parameter(torch.randn(n))

    def forward(self, x):
        rows = x.shape[0]
        y = x * self.scale
        h = 1
        while h < self.n:
            y = y.view(rows, -1, 2, h)
            y = torch.stack([y[:, :, 0] + y[:, :, 1], y[:, :, 0] - y[:, :, 1]], dim=2)
            h *= 2
        return y.reshape(rows, self.n) / math.sqrt(self.n)


ROWS = 1024
N = 512


def get_inputs():
    return [torch.randn(ROWS, N)]


def get_init_inputs():
    return [N]
