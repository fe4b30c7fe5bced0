import torch
import torch.nn as nn


class Model(nn.Module):
    """Chamfer distance of point clouds, and the nearest squared distances themselves."""

    def forward(self, a, b):
        d = ((a[:, :, None] - b[:, None]) ** 2).sum(-1)
        near_a, near_b = d.amin(2), d.amin(1)
        return near_a.mean(1) + near_b.mean(1), near_a, near_b


def get_inputs():
    return [torch.randn(4, 384, 3), torch.randn(4, 448, 3)]


def get_init_inputs():
    return []
