import torch
import torch.nn as nn


class Model(nn.Module):
    """3x3 convolution with bias, stride 1, padding 1, then ReLU."""

    def __init__(self, channels_in, channels_out):
        super().__init__()
        self.conv = nn.Conv2d(channels_in, channels_out, 3, padding=1)

    def forward(self, x):
        return torch.relu(self.conv(x))


def get_inputs():
    return [torch.randn(4, 16, 56, 56)]


def get_init_inputs():
    return [16, 32]
