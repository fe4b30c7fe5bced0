import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def __init__(self):
        super().__init__()

    def forward(self, x):
        return torch.median(x, dim=-1).values


def get_inputs():
    return [torch.randn(256, 511)]
