import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def __init__(self, c, o):
        super().__init__()
        self.conv = nn.Conv2d(c, o, 3, padding=1)

    def forward(self, x):
        return F.relu(self.conv(x))


def get_inputs():
    return [torch.randn(2, 32, 28, 28)]


def get_init_inputs():
    return [32, 48]
