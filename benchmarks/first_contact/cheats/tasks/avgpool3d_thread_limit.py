import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self, k):
        super().__init__()
        self.pool = nn.AvgPool3d(k, stride=1)

    def forward(self, x):
        return self.pool(x)


def get_inputs():
    return [torch.randn(2, 8, 20, 40, 40)]


def get_init_inputs():
    return [3]
