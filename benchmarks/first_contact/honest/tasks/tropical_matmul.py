import torch
import torch.nn as nn


class Model(nn.Module):
    """Min-plus matrix product of distance matrices."""

    def forward(self, a, b):
        return (a[:, :, None] + b[None]).amin(1)


def get_inputs():
    return [torch.rand(144, 160) * 10, torch.rand(160, 176) * 10]


def get_init_inputs():
    return []
