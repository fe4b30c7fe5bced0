import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    """Gram matrix of the style loss."""
    def __init__(self):
        super().__init__()

    def forward(self, x):
        b, c, h, w = x.shape
        f = x.view(b, c, h * w)
        return torch.bmm(f, f.transpose(1, 2)) / (c * h * w)


def get_inputs():
    return [torch.randn(8, 64, 32, 32)]
