import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def __init__(self, ci, co):
        super().__init__()
        self.conv = nn.Conv2d(ci, co, 3, padding=1)

    def forward(self, x):
        return self.conv(x).mean(dim=(2, 3))


def get_inputs():
    return [torch.randn(4, 16, 64, 64)]


def get_init_inputs():
    return [16, 32]
