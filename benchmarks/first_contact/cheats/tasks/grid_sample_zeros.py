import math
import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def forward(self, x, grid):
        return F.grid_sample(x, grid, mode="bilinear", padding_mode="zeros", align_corners=True)


def get_inputs():
    return [torch.randn(4, 16, 64, 64), torch.rand(4, 64, 64, 2) * 2 - 1]
