import torch
import torch.nn as nn


class Model(nn.Module):
    """3x3 convolution followed by a ReLU."""

    def __init__(self, cin, cout):
        super().__init__()
        self.conv = nn.Conv2d(cin, cout, 3, padding=1)

    def forward(self, x):
        return torch.relu(self.conv(x))


def get_inputs():
    return [torch.randn(4, 32, 56, 56)]


def get_init_inputs():
    return [32, 64]
