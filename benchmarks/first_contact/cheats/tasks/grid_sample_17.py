import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def __init__(self):
        super().__init__()

    def forward(self, x, g):
        return F.grid_sample(x, g, align_corners=False)


def get_inputs():
    return [torch.randn(4, 16, 64, 64), torch.rand(4, 64, 64, 2) * 2 - 1]
