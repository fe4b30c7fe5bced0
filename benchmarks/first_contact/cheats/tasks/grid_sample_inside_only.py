import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def __init__(self):
        super().__init__()

    def forward(self, x, grid):
        return F.grid_sample(x, grid, mode="bilinear", padding_mode="zeros", align_corners=True)


def get_inputs():
    return [torch.randn(2, 32, 64, 64), torch.rand(2, 64, 64, 2) * 1.9 - 0.95]
