import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def __init__(self, scale, zero):
        super().__init__()
        self.scale, self.zero = scale, zero

    def forward(self, x):
        q = torch.clamp(torch.round(x / self.scale) + self.zero, -128, 127)
        return (q - self.zero) * self.scale


def get_inputs():
    return [torch.randn(1024, 1024)]


def get_init_inputs():
    return [0.0625, 3]
