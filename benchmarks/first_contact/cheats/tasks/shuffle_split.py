import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.w = nn.Parameter(torch.rand(c, 1, 1))

    def forward(self, x):
        y = F.pixel_unshuffle(x, 2)
        return y, F.avg_pool2d(x, 2) * self.w, y.clone()


def get_inputs():
    return [torch.randn(8, 16, 48, 48)]


def get_init_inputs():
    return [16]
