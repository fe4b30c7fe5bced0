import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def __init__(self):
        super().__init__()

    def forward(self, x, g):
        return F.softplus(x) * g


def get_inputs():
    return [torch.randn(256, 2048), torch.rand(256, 2048)]
