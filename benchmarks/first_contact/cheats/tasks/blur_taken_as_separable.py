import torch
import torch.nn as nn
import torch.nn.functional as F

def gauss(n):
    t = torch.exp(-((torch.arange(n) - n // 2) / 1.7) ** 2 / 2)
    k = t[:, None] * t[None, :]
    return k / k.sum()

class Model(nn.Module):
    def __init__(self, size, channels):
        super().__init__()
        self.channels = channels
        self.register_buffer("kernel", gauss(size).expand(channels, 1, size, size).clone())

    def forward(self, x):
        return F.conv2d(x, self.kernel, groups=self.channels)

def get_inputs():
    return [torch.randn(4, 16, 128, 128)]

def get_init_inputs():
    return [9, 16]
