import torch
import torch.nn as nn


class Model(nn.Module):
    """3x3 median filter over the valid region."""

    def forward(self, x):
        w = x.unfold(2, 3, 1).unfold(3, 3, 1)
        return w.reshape(*w.shape[:4], 9).median(-1).values


def get_inputs():
    return [torch.randn(2, 3, 130, 150)]


def get_init_inputs():
    return []
