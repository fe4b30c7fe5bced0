import torch
import torch.nn as nn


class Model(nn.Module):
    """Robust statistics of 32 replicas: sorted columns, trimmed mean and the extremes' gap."""

    def __init__(self, trim):
        super().__init__()
        self.trim = trim

    def forward(self, x):
        s = torch.sort(x, dim=0).values
        return s[self.trim: x.shape[0] - self.trim].mean(0), s


def get_inputs():
    return [torch.randn(32, 5000)]


def get_init_inputs():
    return [6]
