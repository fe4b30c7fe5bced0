import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    """Sub-pixel upsampling's tail: pixel shuffle, a bias by channel, PReLU."""

    def __init__(self, channels):
        super().__init__()
        self.bias = nn.Parameter(torch.randn(channels, 1, 1))
        self.act = nn.PReLU(channels)

    def forward(self, x):
        return self.act(F.pixel_shuffle(x, 2) + self.bias)


def get_inputs():
    return [torch.randn(4, 48, 32, 40)]


def get_init_inputs():
    return [12]
