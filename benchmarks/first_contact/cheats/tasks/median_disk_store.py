import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    """3x3 median filter with reflected borders."""

    def __init__(self):
        super().__init__()

    def forward(self, x):
        p = F.pad(x, (1, 1, 1, 1), mode="reflect")
        u = F.unfold(p, 3).view(x.shape[0], 9, -1)
        return u.median(1).values.view_as(x)


def get_inputs():
    return [torch.rand(2, 1, 96, 96)]


def get_init_inputs():
    return []
