import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    """Global context broadcast back to all places."""
    def __init__(self):
        super().__init__()

    def forward(self, x):
        return torch.sigmoid(x.mean((2, 3), keepdim=True)).repeat(1, 1, x.shape[2], x.shape[3])


def get_inputs():
    return [torch.randn(8, 64, 48, 48)]
