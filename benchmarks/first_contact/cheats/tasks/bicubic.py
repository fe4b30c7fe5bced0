import torch
import torch.nn as nn
import torch.nn.functional as F

class Model(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.gain = nn.Parameter(torch.rand(channels, 1, 1) + 0.5)
        self.bias = nn.Parameter(torch.rand(channels, 1, 1) - 0.5)

    def forward(self, x):
        y = F.interpolate(x, scale_factor=2, mode="bicubic", align_corners=False)
        return torch.clamp(y * self.gain + self.bias, -1, 1)

def get_inputs():
    return [torch.randn(2, 16, 64, 64)]

def get_init_inputs():
    return [16]
