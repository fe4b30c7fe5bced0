import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.size = size

    def forward(self, x):
        return F.adaptive_max_pool2d(x, self.size)


def get_inputs():
    return [torch.randn(16, 64, 32, 32)]


def get_init_inputs():
    return [2]
