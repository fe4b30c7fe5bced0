import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    """Chamfer distance (squared) of two point clouds."""
    def __init__(self):
        super().__init__()

    def forward(self, a, b):
        d = ((a[:, None, :] - b[None, :, :]) ** 2).sum(-1)
        return d.min(1).values.mean() + d.min(0).values.mean()


def get_inputs():
    return [torch.rand(768, 3), torch.rand(768, 3)]


def get_init_inputs():
    return []
