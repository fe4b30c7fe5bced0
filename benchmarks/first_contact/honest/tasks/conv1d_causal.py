import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    """Causal dilated convolution in one dimension."""

    def __init__(self, cin, cout, taps, dilation):
        super().__init__()
        self.conv = nn.Conv1d(cin, cout, taps, dilation=dilation)
        self.pad = (taps - 1) * dilation

    def forward(self, x):
        return self.conv(F.pad(x, (self.pad, 0)))


def get_inputs():
    return [torch.randn(8, 64, 1000)]


def get_init_inputs():
    return [64, 64, 3, 2]
