import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.knots = nn.Parameter(torch.linspace(-4, 4, 33))
        self.vals = nn.Parameter(torch.randn(33))

    def forward(self, x):
        i = torch.searchsorted(self.knots.detach(), x).clamp(1, 32)
        k0, k1 = self.knots[i - 1], self.knots[i]
        t = (x - k0) / (k1 - k0)
        return self.vals[i - 1] + t * (self.vals[i] - self.vals[i - 1])

def get_inputs():
    return [torch.randn(64, 512)]


def get_init_inputs():
    return []
