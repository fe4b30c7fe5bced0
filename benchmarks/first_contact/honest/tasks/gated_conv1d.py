import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    """Causal dilated convolution with WaveNet's gate."""

    def __init__(self, channels: int, kernel: int, dilation: int):
        super().__init__()
        self.pad = (kernel - 1) * dilation
        self.conv = nn.Conv1d(channels, 2 * channels, kernel, dilation=dilation)

    def forward(self, x):
        y = self.conv(F.pad(x, (self.pad, 0)))
        a, b = y.chunk(2, dim=1)
        return torch.tanh(a) * torch.sigmoid(b)


def get_inputs():
    return [torch.randn(4, 32, 1024)]


def get_init_inputs():
    return [32, 3, 4]
