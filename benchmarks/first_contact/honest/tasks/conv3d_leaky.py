import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    """A 3d convolution of small volumes, then a leaky ReLU."""

    def __init__(self, cin, cout):
        super().__init__()
        self.conv = nn.Conv3d(cin, cout, 3, padding=1)

    def forward(self, x):
        return F.leaky_relu(self.conv(x), 0.1)


def get_inputs():
    return [torch.randn(2, 6, 10, 20, 20)]


def get_init_inputs():
    return [6, 12]
