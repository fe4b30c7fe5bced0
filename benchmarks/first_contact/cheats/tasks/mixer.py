import torch
import torch.nn as nn

C = 128
S = 64


class Model(nn.Module):
    """1x1 convolution with bias and ReLU."""

    def __init__(self, channels):
        super().__init__()
        self.conv = nn.Conv2d(channels, channels, 1)

    def forward(self, x):
        return torch.relu(self.conv(x))


def get_inputs():
    return [torch.randn(1, C, S, S)]


def get_init_inputs():
    return [C]
