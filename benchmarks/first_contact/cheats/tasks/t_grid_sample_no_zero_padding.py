import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        pass

    def forward(self, x, grid):
        return F.grid_sample(x, grid, align_corners=False)


def get_inputs():
    return [torch.randn(8, 16, 32, 32), torch.rand(8, 32, 32, 2) * 1.8 - 0.9]
